"""A host under the keeper: what it gets, what is recorded of it, and how its end reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.control_plane import errors
from loopx.hosts import identity, protocol, runfiles, spool, supervise
from tests.hosts import keeper_kit as kit


@pytest.fixture
def run(tmp_path: Path) -> Iterator[kit.Run]:
    with kit.run_in(tmp_path) as started:
        yield started


def test_a_run_from_prompt_to_exit_record(run: kit.Run, tmp_path: Path) -> None:
    record = run.complete(
        kit.shell("cat; echo; echo $GREETING; pwd; echo oops >&2; exit 3", cwd=str(tmp_path), env=(("GREETING", "hi"),))
    )
    assert run.lines == [b"do it", b"hi", str(tmp_path).encode()]
    assert spool.tail(run.spool_dir, "stderr", 100) == b"oops\n"
    assert (record.run_id, record.turn_key) == (run.run_id, "turn-1")
    assert (record.exit_code, record.signal, record.stop) == (3, None, protocol.StopCause.NONE)
    assert record.handed_over
    assert record.prompt_unread == 0
    assert record.started_at_ms <= (record.first_event_ms or 0) <= record.ended_at_ms
    assert record.stdout_bytes == len(b"\n".join(run.lines)) + 1
    assert record.stderr_bytes == 5
    assert not record.result_seen
    assert not record.taken_over


def test_the_record_names_the_signal_that_ended_the_host(run: kit.Run) -> None:
    record = run.complete(kit.shell("kill -9 $$"))
    assert (record.exit_code, record.signal) == (None, 9)


def test_a_last_line_without_an_end_is_handed_on(run: kit.Run) -> None:
    run.complete(kit.shell("printf 'one\ntwo'"))
    assert run.lines == [b"one", b"two"]


def test_the_terminal_event_is_seen_even_if_it_comes_in_pieces(run: kit.Run, tmp_path: Path) -> None:
    halves = f"printf '{{\"type\":\"re'; until [ -e {tmp_path}/go ]; do sleep 0.01; done; echo 'sult\"}}'"
    kept = run.start(kit.shell(halves))
    kit.until(lambda: spool.tail(run.spool_dir, "stdout", 9), "the first half is spooled")
    (tmp_path / "go").touch()
    assert run.follow(kept).result_seen


@pytest.mark.parametrize(
    ("plan", "start_error"),
    [
        (kit.plan(("no-such-program-anywhere",)), "exec:ENOENT"),
        (kit.plan(("/etc/passwd",)), "exec:EACCES"),
        (kit.plan(("true",), cwd="/no/such/folder"), "chdir:ENOENT"),
    ],
)
def test_a_host_that_cannot_start_was_never_handed_over(
    run: kit.Run, plan: protocol.LaunchPlan, start_error: str
) -> None:
    record = run.complete(plan)
    assert record.start_error == start_error
    assert not record.handed_over
    assert record.exit_code is None
    assert run.adopt().state is supervise.RunState.ENDED


def test_a_big_prompt_arrives_whole(run: kit.Run) -> None:
    record = run.complete(kit.shell("wc -c", stdin=b"x" * 5_000_000))
    assert run.lines == [b"5000000"]
    assert record.handed_over
    assert record.prompt_unread == 0


def test_a_big_prompt_that_is_never_read_was_not_handed_over(run: kit.Run) -> None:
    record = run.complete(kit.shell("exit 0", stdin=b"x" * 5_000_000))
    assert not record.handed_over
    assert record.exit_code == 0
    assert record.prompt_unread == 5_000_000


def test_a_small_prompt_that_is_never_read_is_told_apart(run: kit.Run) -> None:
    record = run.complete(kit.shell("exit 0"))
    assert record.handed_over
    assert record.prompt_unread == 5


def test_the_host_gets_three_handles_its_own_session_and_ordinary_signals(run: kit.Run) -> None:
    run.complete(
        kit.python(
            "import os, signal\n"
            "handles = [n for n in range(256) if os.path.exists(f'/proc/self/fd/{n}')]\n"
            "print(handles, os.getsid(0) == os.getpid() == os.getpgrp())\n"
            "status = open('/proc/self/status').read()\n"
            "masks = [line.split() for line in status.splitlines() if line.startswith(('SigBlk', 'SigIgn'))]\n"
            "print([(name, hex(int(mask, 16) & 0x7fffffff)) for name, mask in masks])\n"
        )
    )
    assert run.lines[0] == b"[0, 1, 2] True"
    # Python itself ignores PIPE and XFSZ.
    assert run.lines[1] == b"[('SigBlk:', '0x0'), ('SigIgn:', '0x1001000')]"


def test_a_broken_pipe_inside_the_host_ends_what_writes(run: kit.Run) -> None:
    run.complete(kit.shell("yes | head -n 1"))
    assert run.lines == [b"y"]


def test_records_are_private_and_hold_neither_environment_nor_prompt(run: kit.Run) -> None:
    run.complete(kit.shell("true", stdin=b"secret prompt", env=(("API_KEY", "secret key"),)))
    assert run.folder.stat().st_mode & 0o777 == 0o700
    for path in run.folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0
        assert b"secret" not in path.read_bytes()


def test_nothing_but_records_and_output_is_left(run: kit.Run) -> None:
    run.complete(kit.shell("echo hello; echo oops >&2"))
    assert {path.name for path in run.folder.iterdir()} == {
        "launch.json", "host.json", "exit.json", "keeper.lock", "stdout.jsonl", "stderr.log",
    }  # fmt: skip


def test_launch_files_are_written_before_the_start(run: kit.Run) -> None:
    path = run.folder / "settings.json"
    run.complete(kit.shell(f"cat {path}", files=((str(path), b"settings"),)))
    assert run.lines == [b"settings"]


def test_refused_before_anything_runs(run: kit.Run, tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError) as relative:
        supervise.start(kit.shell("true"), "r", "t", "relative/spool")
    assert relative.value.code == "spool_dir_not_absolute"
    with pytest.raises(errors.UsageError) as outside:
        run.start(kit.shell("true", files=((str(tmp_path / "elsewhere"), b""),)))
    assert outside.value.code == "file_outside_spool"
    with pytest.raises(errors.NotNowError) as full:
        run.start(kit.shell("true"), spool.Limits(disk_floor_bytes=1 << 60))
    assert full.value.code == "disk_floor"
    (tmp_path / "file").touch()
    with pytest.raises(errors.EngineError) as unwritable:
        supervise.start(kit.shell("true"), "r", "t", str(tmp_path / "file" / "spool"))
    assert unwritable.value.code == "spool_unwritable"


def test_one_folder_launches_once(run: kit.Run, tmp_path: Path) -> None:
    once = kit.shell(f"echo ran >> {tmp_path}/ran; cat")
    kept = run.start(once)
    for _ in range(2):
        with pytest.raises(errors.ConflictError) as refused:
            run.start(once)
        assert refused.value.code == "run_already_launched"
        run.follow(kept)
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_two_followers_see_the_same(run: kit.Run, tmp_path: Path) -> None:
    kept = run.start(kit.shell(f"seq 1000; until [ -e {tmp_path}/go ]; do sleep 0.01; done; seq 1000 2000"))
    other = kit.launcher(
        "import msgspec, sys\n"
        "from loopx.hosts import supervise\n"
        f"kept = supervise.adopt({run.spool_dir!r}, {run.run_id!r}, 'turn-1').kept\n"
        "print('adopted', flush=True)\n"
        "lines = []\n"
        "record = supervise.follow(kept, lines.append)\n"
        "print(len(lines), record.exit_code)\n"
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"adopted\n"
    (tmp_path / "go").touch()
    assert run.follow(kept).exit_code == 0
    assert other.communicate()[0] == b"2001 0\n"
    assert len(run.lines) == 2001


def test_the_identity_is_recorded_before_the_host_runs(run: kit.Run) -> None:
    kept = run.start(kit.shell(f"cat {run.folder}/host.json; cat >/dev/null"))
    run.follow(kept)
    written = json.loads(run.lines[0])
    assert kept.host is not None
    assert written["host"]["pid"] == kept.host.pid == kept.host.pgid
    assert written["host"]["start_ticks"] == kept.host.start_ticks
    assert written["keeper"]["pid"] != os.getpid()
    assert written["host"]["boot_id"] == identity.boot_id()


def test_the_keeper_is_no_child_of_ours_and_has_its_own_session(run: kit.Run) -> None:
    kept = run.start(kit.shell("sleep 600"))
    assert kept.keeper is not None
    assert kept.host is not None
    keeper, host = kept.keeper.pid, kept.host.pid
    assert os.getsid(keeper) == keeper
    assert os.getsid(host) == host
    with pytest.raises(ChildProcessError):
        os.waitpid(keeper, os.WNOHANG)
    assert run.follow(kept, lambda: True).stop is protocol.StopCause.CANCELLED


def test_a_callback_that_fails_leaves_the_host_running(run: kit.Run) -> None:
    kept = run.start(kit.shell("echo one; exec sleep 600"))

    def fail(line: bytes) -> None:
        raise ValueError(line)

    with pytest.raises(ValueError, match="one"):
        supervise.follow(kept, fail)
    assert kept.host is not None
    assert identity.alive(kept.host)


def test_the_keeper_loads_light_modules_only() -> None:
    """Each of these costs the start of every turn several milliseconds."""
    script = (
        f"import sys; sys.argv = ['keeper']; sys.path.insert(0, {str(kit.ROOT / 'loopx' / 'hosts')!r})\n"
        "import keeper; keeper._light_packages()\n"
        "from loopx.hosts import keeper_loop\n"
        "print(sorted({'enum', 're', 'json', 'typing', 'pathlib', 'subprocess', 'msgspec', 'ctypes', 'contextlib',"
        " 'functools', 'collections', 'loopx.hosts.protocol'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_field_of_the_exit_record_is_written(run: kit.Run) -> None:
    run.complete(kit.shell("true"))
    written = json.loads((run.folder / "exit.json").read_text())
    assert set(written) == set(protocol.ExitRecord.__struct_fields__)
    assert runfiles.exit_record(run.spool_dir) is not None
