"""Whether this process runs inside a host that LoopX launched: then it may act as an agent, never as a person."""

from __future__ import annotations

from loopx.hosts import identity, runfiles
from loopx.store import hosts
from loopx.store.store import Store


def inside_a_host(store: Store) -> bool:
    """Walks the ancestors of this process and compares them with the hosts on record that have not ended."""
    with store.read() as tx:
        runs = hosts.open_runs(tx)
    files = [found for run in runs if (found := runfiles.host(run.spool_dir)) is not None]
    identities = [one for found in files for one in (found.keeper, found.host)]
    return bool(identities) and identity.is_hosted(identities) is not None
