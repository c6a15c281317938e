"""Whether this process runs inside a host that LoopX launched: then it may act as its agent, never as a person."""

from __future__ import annotations

from loopx.hosts import identity, runfiles
from loopx.store import hosts
from loopx.store.store import Store


def inside_a_host(store: Store) -> bool:
    """Whether an ancestor of this process is a host on record that has not ended."""
    return hosting_turn(store) is not None


def hosting_turn(store: Store) -> str | None:
    """The turn of the host that this process descends from, or None: a person's, or another program's."""
    with store.read() as tx:
        runs = hosts.open_runs(tx)
    turn_of = {
        one: run.turn_key
        for run in runs
        if (found := runfiles.host(run.spool_dir)) is not None
        for one in (found.keeper, found.host)
    }
    who = identity.is_hosted(turn_of) if turn_of else None
    return turn_of[who] if who is not None else None
