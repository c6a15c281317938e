"""Probing: executable and signed in are two verdicts; every match on PATH is tried; a pinned path is honoured or
refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopx.hosts.protocol import Executable, SignedIn
from loopx.hosts.registry import adapter_for

GOOD = '#!/bin/sh\n[ "$1" = --version ] && echo "codex-cli 1.2.3" && exit 0\nexit {signed_out}\n'


def program(folder: Path, name: str, script: str, mode: int = 0o755) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(script)
    path.chmod(mode)
    return str(path)


def env(*folders: Path, home: Path) -> tuple[tuple[str, str], ...]:
    return (("PATH", ":".join([*map(str, folders), "/usr/bin", "/bin"])), ("HOME", str(home)))


def test_every_match_is_tried_in_order(tmp_path: Path) -> None:
    broken = program(tmp_path / "a", "codex", "#!/bin/sh\nexit 127\n")
    program(tmp_path / "b", "codex", GOOD.format(signed_out=0), mode=0o644)
    good = program(tmp_path / "c", "codex", GOOD.format(signed_out=0))
    found = adapter_for("codex").probe(env(tmp_path / "a", tmp_path / "b", tmp_path / "c", home=tmp_path))
    assert found.executable is Executable.READY
    assert found.program == good
    assert found.version == "1.2.3"
    assert found.tried == (broken, good), "a file that may not be executed is no match"
    assert found.signed_in is SignedIn.YES


def test_a_login_status_that_nobody_understands_is_no_verdict(tmp_path: Path) -> None:
    program(tmp_path / "a", "codex", GOOD.format(signed_out=2))
    assert adapter_for("codex").probe(env(tmp_path / "a", home=tmp_path)).signed_in is SignedIn.UNKNOWN


def test_signed_out_is_not_broken(tmp_path: Path) -> None:
    program(tmp_path / "a", "codex", GOOD.format(signed_out=1))
    found = adapter_for("codex").probe(env(tmp_path / "a", home=tmp_path))
    assert found.executable is Executable.READY
    assert found.signed_in is SignedIn.NO
    assert found.fix == "codex login"


def test_only_broken_ones(tmp_path: Path) -> None:
    broken = program(tmp_path / "a", "gemini", "#!/no/such/interpreter\n")
    found = adapter_for("gemini").probe(env(tmp_path / "a", home=tmp_path))
    assert found.executable is Executable.BROKEN
    assert found.program is None
    assert found.tried == (broken,)
    assert "npm install" in found.fix


@pytest.mark.parametrize("engine", ["codex", "claude", "opencode", "gemini"])
def test_missing(tmp_path: Path, engine: str) -> None:
    found = adapter_for(engine).probe((("PATH", str(tmp_path)), ("HOME", str(tmp_path))))
    assert found.executable is Executable.MISSING
    assert found.signed_in is SignedIn.UNKNOWN
    assert "npm install" in found.fix


def test_pinned_is_the_only_candidate(tmp_path: Path) -> None:
    program(tmp_path / "a", "codex", GOOD.format(signed_out=0))
    other = program(tmp_path / "b", "my-codex", GOOD.format(signed_out=0))
    adapter = adapter_for("codex")
    assert adapter.probe(env(tmp_path / "a", home=tmp_path), other).program == other
    lost = adapter.probe(env(tmp_path / "a", home=tmp_path), str(tmp_path / "gone"))
    assert lost.executable is Executable.MISSING
    assert lost.program is None


def test_claude_says_it_itself(tmp_path: Path) -> None:
    script = (
        '#!/bin/sh\n[ "$1" = --version ] && echo "2.1.0 (Claude Code)" && exit 0\n'
        "printf '{{\\n \"loggedIn\": {}\\n}}'\n"
    )
    for word, verdict in (("true", SignedIn.YES), ("false", SignedIn.NO), ("3", SignedIn.YES)):
        path = program(tmp_path, "claude", script.format(word))
        assert adapter_for("claude").probe(env(home=tmp_path), path).signed_in is verdict


def test_codex_own_provider_needs_its_own_key(tmp_path: Path) -> None:
    path = program(tmp_path, "codex", GOOD.format(signed_out=1))
    home = tmp_path / "codex-home"
    home.mkdir()
    (home / "config.toml").write_text(
        'model_provider = "mine"\n[model_providers.mine]\nbase_url = "http://x"\nenv_key = "MINE"\n'
    )
    base = (*env(home=tmp_path), ("CODEX_HOME", str(home)))
    adapter = adapter_for("codex")
    assert adapter.probe(base, path).signed_in is SignedIn.NO
    assert adapter.probe((*base, ("MINE", "k")), path).signed_in is SignedIn.YES
    (home / "config.toml").write_text('model_provider = "mine"\n[model_providers.mine]\nbase_url = "http://x"\n')
    assert adapter.probe(base, path).signed_in is SignedIn.UNKNOWN
    (home / "config.toml").write_text("not toml [")
    assert adapter.probe(base, path).signed_in is SignedIn.NO


def test_opencode_stored_credential(tmp_path: Path) -> None:
    path = program(tmp_path, "opencode", "#!/bin/sh\necho 1.0.0\n")
    adapter = adapter_for("opencode")
    assert adapter.probe(env(home=tmp_path), path).signed_in is SignedIn.UNKNOWN
    data = tmp_path / ".local" / "share" / "opencode"
    data.mkdir(parents=True)
    (data / "auth.json").write_text('{\n "anthropic": {"type": "api", "key": "x"}\n}')
    assert adapter.probe(env(home=tmp_path), path).signed_in is SignedIn.YES


def test_command_is_found_and_never_run(tmp_path: Path) -> None:
    path = program(tmp_path, "agent", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    found = adapter_for(f"command:{path} --fast").probe(env(home=tmp_path))
    assert found.executable is Executable.READY
    assert found.program == path
    assert not (tmp_path / "ran").exists()
    assert adapter_for("command:no-such-agent").probe(env(home=tmp_path)).executable is Executable.MISSING
