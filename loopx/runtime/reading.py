"""Reading the facts of a decision: what the store knows, and whether there is room on the disk and under the
machine's launch cap to act on it.

Every surface that decides reads through here, so that no two can disagree. It writes nothing.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.facts import BudgetUse, GoalFacts, Health, PendingWait
from loopx.control_plane.quota.policy import BudgetScope
from loopx.runtime.machine import heed_cap
from loopx.runtime.space import heed_floor
from loopx.runtime.tree_health import heed_tree
from loopx.store import facts
from loopx.store.connection import Tx
from loopx.store.store import Store


def read_facts(store: Store, tx: Tx, goal_id: str, agent_id: AgentId) -> GoalFacts:
    """The facts in the snapshot of `tx`. Raises NotFoundError (`goal_unknown`)."""
    return _heed(store, tx, facts.read(tx, goal_id, agent_id, store.now_ms()))


def _heed(store: Store, tx: Tx, seen: GoalFacts) -> GoalFacts:
    return heed_cap(heed_floor(heed_tree(seen, tx), store.path))


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What the world outside the store says of a goal; a transaction that writes may not look there itself."""

    health: Health | None
    health_detail: str
    wait: PendingWait | None
    cap: BudgetUse | None


def outside(store: Store, goal_id: str, agent_id: AgentId) -> Outside:
    """A look at it. Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        stored = facts.read(tx, goal_id, agent_id, store.now_ms())
        seen = _heed(store, tx, stored)
    return Outside(
        health=seen.health if seen.health is not stored.health else None,
        health_detail=seen.health_detail,
        wait=seen.wait if seen.wait is not stored.wait else None,
        cap=next((use for use in seen.budgets if use.scope is BudgetScope.MACHINE), None),
    )


def facts_to_write(store: Store, tx: Tx, goal_id: str, agent_id: AgentId, around: Outside) -> GoalFacts:
    """The facts inside a transaction that writes: the store's own now, and the world as it was just before."""
    seen = facts.read(tx, goal_id, agent_id, store.now_ms())
    if around.health is not None and seen.health is Health.OK:
        seen = msgspec.structs.replace(seen, health=around.health, health_detail=around.health_detail)
    if around.wait is not None and _is_longer(around.wait, seen.wait):
        seen = msgspec.structs.replace(seen, wait=around.wait)
    return seen if around.cap is None else msgspec.structs.replace(seen, budgets=(*seen.budgets, around.cap))


def _is_longer(wait: PendingWait, other: PendingWait | None) -> bool:
    if other is None or other.until_ms is None:
        return other is None
    return wait.until_ms is None or wait.until_ms > other.until_ms


def decide(store: Store, goal_id: str, agent_id: AgentId) -> decisions.QuotaDecision:
    """The should-run decision, now. Raises NotFoundError (`goal_unknown`), StoreError."""
    with store.read() as tx:
        facts = read_facts(store, tx, goal_id, agent_id)
    return decisions.decide(facts)
