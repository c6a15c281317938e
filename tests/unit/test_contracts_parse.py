"""What a person writes becomes a valid contract or a refusal that names the mistake."""

from __future__ import annotations

import msgspec
import pytest

from loopx.contracts.model import Check, CheckKind, Contract, DifferentialRule, ExpectKind, ProtectPolicy
from loopx.contracts.parse import (
    MissingProgram,
    ProgramState,
    missing_program,
    parse_checks,
    parse_command_line,
    parse_contract,
    parse_expect,
    parse_timeout,
)
from loopx.control_plane.errors import UsageError


def _code(call: object, *args: object) -> str:
    assert callable(call)
    with pytest.raises(UsageError) as caught:
        call(*args)
    assert caught.value.message
    return caught.value.code


@pytest.mark.parametrize(
    ("line", "name", "command"),
    [
        ("pytest -q tests/test_dates.py", "tests/test_dates.py", ("pytest", "-q", "tests/test_dates.py")),
        ("pytest -q", "pytest -q", ("pytest", "-q")),
        ("pytest -k 'a and b'", "pytest -k 'a and b'", ("pytest", "-k", "a and b")),
        ("unit=pytest -q", "unit", ("pytest", "-q")),
        ("FOO=1 pytest -q", "FOO=1 pytest -q", "FOO=1 pytest -q"),
        ("pytest && ruff check .", "pytest && ruff check .", "pytest && ruff check ."),
        ("all=pytest | tee log", "all", "pytest | tee log"),
        ("exit 1", "exit 1", "exit 1"),
        ("ls *.py", "ls *.py", "ls *.py"),
        ("grep '*' a", "grep '*' a", ("grep", "*", "a")),
        ('sh -c "exit 1"', "sh -c 'exit 1'", ("sh", "-c", "exit 1")),
    ],
)
def test_command_line(line: str, name: str, command: tuple[str, ...] | str) -> None:
    (check,) = parse_command_line([line])
    assert (check.name, check.command) == (name, command)
    assert check.timeout_s == 120


def test_long_commands_get_short_distinct_names() -> None:
    first, second = parse_command_line(["python -m mytool " + "x" * 80 + "a", "python -m mytool " + "x" * 80 + "b"])
    assert len(first.name) == 60
    assert second.name == f"{first.name} (2)"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], "contract_empty"),
        ([""], "check_empty"),
        (["   "], "check_empty"),
        (["pytest", "pytest"], "check_duplicate"),
        (["a=pytest", "a=pytest -x"], "check_duplicate"),
        (["pytest --version"], "check_version_command"),
        (["python -V"], "check_version_command"),
        (["python3 -m pytest --version"], "check_version_command"),
        (["node -v"], "check_version_command"),
        (["go version"], "check_version_command"),
        (["cd x && git --version"], "check_version_command"),
        (["uv run pytest --version"], "check_version_command"),
    ],
)
def test_refused_command_lines(lines: list[str], code: str) -> None:
    assert _code(parse_command_line, lines) == code


@pytest.mark.parametrize("line", ["./tool --version", "python -m mypackage --version", "pytest -v", "true"])
def test_not_a_bare_version_command(line: str) -> None:
    assert parse_command_line([line])


def test_a_version_command_with_an_expectation_judges_something() -> None:
    (check,) = parse_checks([{"name": "v", "command": "tool --version", "expect": "contains 2.0"}])
    assert check.expect.text == "2.0"


def test_whole_contract_from_a_table() -> None:
    contract = parse_contract(
        {
            "checks": [
                "pytest -q",
                {"name": "speed", "command": ["python", "bench.py"], "kind": "baseline", "pointer": "/ms"},
                {
                    "name": "no slower",
                    "command": "python bench.py",
                    "kind": "differential",
                    "against": "speed",
                    "compare": "not_higher",
                    "pointer": "/ms",
                    "tolerance_percent": 5,
                    "timeout": "5m",
                    "primary": True,
                    "held_out": True,
                    "flaky_retries": 2,
                },
            ],
            "policy": "disclose",
            "protected": ["golden/**"],
            "confirm_in_snapshot": False,
            "dependency_dirs": ["node_modules"],
            "workers": 2,
        }
    )
    third = contract.named("no slower")
    assert third is not None
    assert (third.kind, third.compare) == (CheckKind.DIFFERENTIAL, DifferentialRule.NOT_HIGHER)
    assert (third.timeout_s, third.primary, third.held_out, third.flaky_retries) == (300, True, True, 2)
    assert contract.policy is ProtectPolicy.DISCLOSE
    assert not contract.confirm_in_snapshot
    assert msgspec.json.decode(msgspec.json.encode(contract), type=Contract) == contract


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"command": "x", "nmae": "y"}, "check_unknown_key"),
        ({"name": "x"}, "check_empty"),
        ({"name": "x", "command": []}, "check_empty"),
        ({"name": "x", "command": "a", "timeout": 0}, "check_timeout"),
        ({"name": "x", "command": "a", "timeout": -5}, "check_timeout"),
        ({"name": "x", "command": "a", "timeout": "soon"}, "check_timeout"),
        ({"name": "x", "command": "a", "timeout": True}, "check_timeout"),
        ({"name": "x", "command": "a", "timeout": 10**9}, "check_timeout"),
        ({"name": "x", "command": "a", "timeout": 5, "timeout_s": 6}, "check_timeout"),
        ({"name": "x", "command": "a", "expect": "$json:a/b=1"}, "check_pointer"),
        ({"name": "x", "command": "a", "expect": "$json:/a~2=1"}, "check_pointer"),
        ({"name": "x", "command": "a", "expect": "$json:/a"}, "check_expect"),
        ({"name": "x", "command": "a", "expect": "looks good"}, "check_expect"),
        ({"name": "x", "command": "a", "expect": "contains "}, "check_expect"),
        ({"name": "x", "command": "a", "expect": 3}, "check_expect"),
        ({"name": "x", "command": "a", "kind": "other"}, "check_type"),
        ({"name": "x", "command": "a", "primary": "yes"}, "check_type"),
        ({"name": "x", "command": "a", "flaky_retries": 99}, "check_type"),
        ({"name": "x", "command": "a", "cwd": "../up"}, "check_type"),
        ({"name": "x", "command": "a", "cwd": "/etc"}, "check_type"),
        ({"name": 7, "command": "a"}, "check_type"),
        ({"name": "a\nb", "command": "a"}, "check_name"),
        ({"name": "x", "command": "a", "kind": "differential"}, "check_against_missing"),
        ({"name": "x", "command": "a", "against": "y"}, "check_against"),
        ({"name": "x", "command": "a", "kind": "baseline"}, "contract_empty"),
        (7, "check_type"),
    ],
)
def test_refused_entries(entry: object, code: str) -> None:
    assert _code(parse_checks, [entry]) == code


def test_refused_contracts() -> None:
    assert _code(parse_contract, {"checks": ["true"], "polcy": "refuse"}) == "contract_unknown_key"
    assert _code(parse_contract, {}) == "contract_empty"
    assert _code(parse_contract, {"checks": "pytest"}) == "contract_empty"
    assert _code(parse_contract, {"checks": ["true"], "workers": 0}) == "check_type"
    assert _code(parse_contract, {"checks": ["true"], "policy": "lax"}) == "check_type"


def test_expectations() -> None:
    assert parse_expect("exit zero").kind is ExpectKind.EXIT_ZERO
    assert parse_expect("output contains all good").text == "all good"
    assert parse_expect({"contains": "x y"}).text == "x y"
    pointed = parse_expect('$json:/a/0={"b": 1}')
    assert (pointed.pointer, pointed.value) == ("/a/0", '{"b":1}')
    assert parse_expect("$json:/state=ready").value == '"ready"'
    assert parse_expect("$json:=3").pointer == ""


@pytest.mark.parametrize(("value", "seconds"), [(5, 5), ("90s", 90), ("5m", 300), ("1h", 3600), ("7", 7)])
def test_timeouts(value: object, seconds: int) -> None:
    assert parse_timeout(value) == seconds


def test_a_missing_program_names_the_fix() -> None:
    def find(program: str, directory: str) -> ProgramState:
        assert directory in {"sub", "."}
        return ProgramState.FOUND if program == ".venv/bin/pytest" else ProgramState.MISSING

    check = Check(name="t", command="cd sub && FOO=1 pytest -q")
    assert missing_program(check, find) == MissingProgram(check="t", program="pytest", suggestion=".venv/bin/pytest")


def test_programs_that_the_shell_has_are_not_looked_up() -> None:
    def find(program: str, directory: str) -> ProgramState:
        return ProgramState.MISSING

    assert missing_program(Check(name="t", command="exit 1"), find) is None
    assert missing_program(Check(name="t", command="$TOOL x"), find) is None
    assert missing_program(Check(name="t", command=("nope",)), find) is not None
