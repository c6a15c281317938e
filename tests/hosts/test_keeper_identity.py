"""Which process is meant, and who descends from whom."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loopx.hosts import identity, procs, supervise
from tests.hosts import keeper_kit as kit

AM_I_HOSTED = """
import sys, msgspec
sys.path.insert(0, {root!r})
from loopx.hosts import identity, runfiles
while (found := runfiles.host({spool_dir!r})) is None: pass
who = identity.is_hosted([found.host])
other_time = msgspec.structs.replace(found.host, start_ticks=1)
other_boot = msgspec.structs.replace(found.host, boot_id="other")
print(who == found.host, identity.is_hosted([other_time, other_boot]), identity.is_hosted([found.keeper]) is not None)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[kit.Run]:
    with kit.run_in(tmp_path) as started:
        yield started


@pytest.mark.parametrize(
    "command",
    ['{python} -c "$SCRIPT"', '(setsid {python} -c "$SCRIPT")', 'sh -c \'sh -c "{python} -c \\"\\$SCRIPT\\""\''],
)
def test_a_process_below_a_host_knows_it(run: kit.Run, command: str) -> None:
    script = AM_I_HOSTED.format(root=str(kit.ROOT), spool_dir=run.spool_dir)
    run.complete(kit.shell(command.format(python=sys.executable), env=(("SCRIPT", script),)))
    assert run.lines == [b"True None True"]


def test_this_test_is_not_hosted(run: kit.Run) -> None:
    kept = run.start(kit.shell("exec sleep 600"))
    assert kept.host is not None
    assert kept.keeper is not None
    assert identity.is_hosted([kept.host, kept.keeper]) is None
    assert identity.is_hosted([kept.host], kept.host.pid) == kept.host
    assert identity.is_hosted([]) is None


def test_identity_of_a_process(run: kit.Run) -> None:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        who = identity.of(process.pid)
        assert who is not None
        assert (who.pid, who.pgid, who.boot_id) == (process.pid, process.pid, procs.boot_id())
        assert identity.alive(who)
        assert not identity.alive(msgspec.structs.replace(who, start_ticks=who.start_ticks + 1))
        assert not identity.alive(msgspec.structs.replace(who, boot_id="other"))
        assert not identity.send(msgspec.structs.replace(who, boot_id="other"), 9)
    finally:
        process.kill()
    kit.until(lambda: not identity.alive(who), "a zombie is not alive")
    assert identity.of(process.pid) is None
    process.wait()
    assert identity.of(process.pid) is None


@pytest.mark.parametrize("name", ["a) S 1 2 3", "((", "with space", ")"])
def test_a_program_may_be_called_anything(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "600"])
    try:
        seen = procs.look(process.pid)
        assert seen is not None
        assert (seen.pid, seen.ppid, seen.pgrp) == (process.pid, os.getpid(), os.getpgrp())
        assert seen.state in "SDR"
    finally:
        process.kill()
        process.wait()


def test_torn_process_records_are_no_process() -> None:
    assert procs.parse_stat(b"") is None
    assert procs.parse_stat(b"12 (sh) S 1") is None


def test_where_there_is_no_proc_ps_tells() -> None:
    me = procs.look(os.getpid())
    assert me is not None
    found = procs.parse_ps(procs._ps("-p", str(os.getpid())))
    assert [(proc.pid, proc.ppid, proc.pgrp, proc.session) for proc in found] == [
        (me.pid, me.ppid, me.pgrp, me.session)
    ]
    assert procs.parse_ps("garbage\n1 2\n") == []


def test_descendants_follow_the_parent_chain_only() -> None:
    def proc(pid: int, ppid: int) -> procs.Proc:
        return procs.Proc(pid, ppid, pid, pid, "S", 1)

    seen = [proc(2, 1), proc(3, 2), proc(4, 3), proc(5, 1), proc(6, 6)]
    assert procs.descendants(seen, [2]) == {3, 4}
    assert procs.descendants(seen, [3, 5]) == {4}
    assert procs.descendants(seen, [6]) == {6}


def test_kept_runs_can_be_stored_and_read_again(run: kit.Run) -> None:
    kept = run.start(kit.shell("cat"))
    assert msgspec.json.decode(msgspec.json.encode(kept), type=supervise.Kept) == kept
    run.follow(kept)
