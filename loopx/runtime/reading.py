"""Reading the facts of a decision: what the store knows, and whether there is room on the disk and under the
machine's launch cap to act on it.

Every surface that decides reads through here, so that no two can disagree. It writes nothing.
"""

from __future__ import annotations

from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.facts import GoalFacts
from loopx.runtime.machine import heed_cap
from loopx.runtime.space import heed_floor
from loopx.runtime.tree_health import heed_tree
from loopx.store import facts
from loopx.store.connection import Tx
from loopx.store.store import Store


def read_facts(store: Store, tx: Tx, goal_id: str, agent_id: AgentId) -> GoalFacts:
    """The facts in the snapshot of `tx`. Raises NotFoundError (`goal_unknown`)."""
    seen = facts.read(tx, goal_id, agent_id, store.now_ms())
    return heed_cap(heed_floor(heed_tree(seen, tx), store.path))


def decide(store: Store, goal_id: str, agent_id: AgentId) -> decisions.QuotaDecision:
    """The should-run decision, now. Raises NotFoundError (`goal_unknown`), StoreError."""
    with store.read() as tx:
        facts = read_facts(store, tx, goal_id, agent_id)
    return decisions.decide(facts)
