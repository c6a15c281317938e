"""Plans: the argument vector, the environment, files of the spool folder, and what is refused before anything runs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from loopx.control_plane.errors import EngineError, UsageError
from loopx.hosts import launch, registry
from loopx.hosts.protocol import LaunchPlan, LaunchRequest, McpServer, PermissionMode

CLIS = registry.CLIS
MCP = McpServer(name="loopx", argv=("loopx", "mcp"), env=(("LOOPX_TURN_TOKEN", "secret-token"),))


@pytest.fixture
def request_(tmp_path: Path) -> LaunchRequest:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "work").mkdir()
    return LaunchRequest(
        run_id="run-1",
        turn_key="turn-1",
        goal_id="goal-1",
        workdir=str(tmp_path / "work"),
        spool_dir=str(tmp_path / "spool"),
        prompt="Do it: ünïcödé",
        model="m-1",
        pinned_program=str(program),
    )


def plan(engine: str, request: LaunchRequest, *env: tuple[str, str], **changes: object) -> LaunchPlan:
    return registry.adapter_for(engine).plan(msgspec.structs.replace(request, **changes), env)


@pytest.mark.parametrize("engine", [*CLIS, "command:agent --flag"])
def test_prompt_goes_to_standard_input_only(engine: str, request_: LaunchRequest) -> None:
    ready = plan(engine, request_)
    assert ready.stdin == request_.prompt.encode()
    assert not any("Do it" in word for word in ready.argv)
    assert ready.cwd == request_.workdir
    env = dict(ready.env)
    assert env["PWD"] == request_.workdir
    assert env["LOOPX_GOAL_ID"] == "goal-1"
    assert env["LOOPX_TURN_KEY"] == "turn-1"


@pytest.mark.parametrize("engine", CLIS)
def test_model_and_extra_arguments_reach_every_engine(engine: str, request_: LaunchRequest) -> None:
    argv = plan(engine, request_, extra_args=("--extra", "word")).argv
    assert "m-1" in argv
    assert argv.index("word") == argv.index("--extra") + 1


@pytest.mark.parametrize("engine", CLIS)
def test_resume_names_the_session(engine: str, request_: LaunchRequest) -> None:
    assert "session-7" in plan(engine, request_, resume_session="session-7").argv


@pytest.mark.parametrize("engine", CLIS)
def test_bypass_only_when_asked_for(engine: str, request_: LaunchRequest) -> None:
    words = {"--dangerously-bypass-approvals-and-sandbox", "--dangerously-skip-permissions", "--auto", "yolo"}
    for permission in (PermissionMode.READ_ONLY, PermissionMode.WORKSPACE):
        assert not words & set(plan(engine, request_, permission=permission).argv)
    assert words & set(plan(engine, request_, permission=PermissionMode.BYPASS).argv)


def test_codex_never_asks(request_: LaunchRequest) -> None:
    argv = plan("codex", request_).argv
    assert argv[argv.index("-s") : argv.index("-s") + 2] == ("-s", "workspace-write")
    assert 'approval_policy="never"' in argv
    assert argv[-1] == "-"


def test_codex_resume_comes_after_the_options(request_: LaunchRequest) -> None:
    argv = plan("codex", request_, resume_session="s", extra_args=("-c", "x=1")).argv
    assert argv[-3:] == ("resume", "s", "-")


def test_the_agent_may_write_its_outbox_and_no_record_of_the_keeper(request_: LaunchRequest, tmp_path: Path) -> None:
    outbox = tmp_path / "outbox" / "result.json"
    argv = plan("codex", request_, env=(("LOOPX_RESULT_FILE", str(outbox)),)).argv
    assert argv[argv.index("--add-dir") + 1] == str(tmp_path / "outbox")
    for inside in (Path(request_.spool_dir) / "result.json", tmp_path / "result.json"):
        assert "--add-dir" not in plan("codex", request_, env=(("LOOPX_RESULT_FILE", str(inside)),)).argv
    in_tree = Path(request_.workdir) / ".loopx" / "result.json"
    assert "--add-dir" not in plan("codex", request_, env=(("LOOPX_RESULT_FILE", str(in_tree)),)).argv


def test_claude_settings_allow_the_goals_checks(request_: LaunchRequest) -> None:
    ready = plan("claude", request_, allow_commands=("cd app && ./check.sh --fast",))
    name, content = next(pair for pair in ready.files if pair[0].endswith("settings.json"))
    assert ready.argv[ready.argv.index("--settings") + 1] == name
    assert Path(name).parent == Path(request_.spool_dir)
    permissions = json.loads(content)["permissions"]
    assert "Bash(./check.sh --fast:*)" in permissions["allow"]
    assert "Bash(git push:*)" in permissions["deny"]
    assert "Bash" not in permissions["allow"]


def test_gemini_policy_is_toml(request_: LaunchRequest) -> None:
    ready = plan("gemini", request_, allow_commands=('pytest -k "a or b"',))
    rules = tomllib.loads(ready.files[0][1].decode())["rule"]
    assert [rule["decision"] for rule in rules] == ["deny", "allow", "deny"]
    assert 'pytest -k "a or b"' in rules[1]["commandPrefix"]


def test_opencode_keeps_the_persons_inline_configuration(request_: LaunchRequest) -> None:
    own = json.dumps({"provider": {"mine": {}}, "permission": {"bash": "allow"}})
    config = json.loads(
        dict(plan("opencode", request_, ("OPENCODE_CONFIG_CONTENT", own)).env)["OPENCODE_CONFIG_CONTENT"]
    )
    assert config["provider"] == {"mine": {}}
    assert config["permission"]["bash"]["*"] == "deny"


@pytest.mark.parametrize("engine", ["codex", "claude", "opencode"])
def test_tool_server_without_its_token(engine: str, request_: LaunchRequest) -> None:
    ready = plan(engine, request_, mcp=MCP)
    assert dict(ready.env)["LOOPX_TURN_TOKEN"] == "secret-token"
    assert not any("secret-token" in word for word in ready.argv)
    assert not any(b"secret-token" in content for _, content in ready.files)


def test_the_users_own_environment_passes_and_session_variables_do_not(request_: LaunchRequest) -> None:
    base = (
        ("CODEX_HOME", "/their/codex"),
        ("ANTHROPIC_BASE_URL", "http://127.0.0.1:1"),
        ("CLAUDE_CODE_OAUTH_TOKEN", "theirs"),
        ("CLAUDECODE", "1"),
        ("CLAUDE_CODE_SSE_PORT", "1"),
        ("CODEX_THREAD_ID", "outer"),
        ("CODEX_SANDBOX", "seatbelt"),
        ("LOOPX_TURN_TOKEN", "of-an-outer-turn"),
        ("LOOPX_RESULT_FILE", "/outer"),
        ("LOOPX_DATABASE_URL", "postgresql://x"),
    )
    env = dict(plan("codex", request_, *base).env)
    assert {"CODEX_HOME", "ANTHROPIC_BASE_URL", "CLAUDE_CODE_OAUTH_TOKEN", "LOOPX_DATABASE_URL"} <= set(env)
    dropped = {"CLAUDECODE", "CLAUDE_CODE_SSE_PORT", "CODEX_THREAD_ID", "CODEX_SANDBOX", "LOOPX_TURN_TOKEN"}
    assert not (dropped | {"LOOPX_RESULT_FILE"}) & set(env)


def test_too_long_arguments_are_refused_before_the_start(request_: LaunchRequest) -> None:
    with pytest.raises(UsageError) as refused:
        plan("codex", request_, extra_args=("x" * 200_000,))
    assert refused.value.code == "arguments_too_long"
    with pytest.raises(UsageError) as refused:
        plan("codex", request_, extra_args=("x" * 1000,) * 10_000)
    assert refused.value.code == "arguments_too_long"
    with pytest.raises(UsageError) as refused:
        plan("codex", request_, extra_args=("a\0b",))
    assert refused.value.code == "argument_has_nul"


def test_too_long_a_prompt_is_refused_before_the_start(request_: LaunchRequest) -> None:
    with pytest.raises(UsageError) as refused:
        plan("claude", request_, prompt="x" * (launch.PROMPT_LIMIT_BYTES + 1))
    assert refused.value.code == "prompt_too_long"
    assert plan("claude", request_, prompt="x" * 200_000).stdin == b"x" * 200_000


@pytest.mark.parametrize("engine", CLIS)
def test_pinned_path_is_honoured_or_refused(engine: str, request_: LaunchRequest, tmp_path: Path) -> None:
    on_path = tmp_path / "bin"
    on_path.mkdir()
    (on_path / engine).write_text("#!/bin/sh\n")
    (on_path / engine).chmod(0o755)
    base = ("PATH", f"/nonexistent:{on_path}")
    assert plan(engine, request_, base).argv[0] == request_.pinned_program
    assert plan(engine, request_, base, pinned_program=None).argv[0] == str(on_path / engine)
    with pytest.raises(EngineError) as refused:
        plan(engine, request_, base, pinned_program=str(tmp_path / "gone"))
    assert refused.value.code == "pinned_program_missing"
    with pytest.raises(EngineError) as missing:
        plan(engine, request_, ("PATH", "/nonexistent"), pinned_program=None)
    assert missing.value.code == "engine_missing"
