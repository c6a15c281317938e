"""Questions about an engine rather than about the work: sign in, mend its setup, top up its account.

Each is asked once for an engine, by the check before a launch and by a failed turn alike. They are about the machine,
so nobody has to answer them there: whoever mended it runs the goal again, and the run lets go of them.
"""

from __future__ import annotations

from loopx.control_plane.ids import GoalId
from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import Gate, GateKind
from loopx.store import gates
from loopx.store.store import Store

ENGINE_KINDS = frozenset({GateKind.SIGN_IN, GateKind.CONFIGURATION, GateKind.BUDGET})
BY_RUN = "loopx"
TRIED_AGAIN = "tried again"


def key(kind: GateKind, engine: str) -> str:
    """The `dedupe_key` of a question about an engine."""
    return f"{kind}:{engine}"


def sign_in(engine: str, fix: str) -> GateDraft:
    """The question that goes with a missing or lapsed sign-in. `fix` is what a person runs."""
    return GateDraft(
        kind=GateKind.SIGN_IN, question=f"{engine} is not signed in", dedupe_key=key(GateKind.SIGN_IN, engine), fix=fix
    )


def ask(store: Store, goal_id: GoalId, draft: GateDraft) -> None:
    """Ask, unless the same question is open."""
    with store.write() as tx:
        gates.ask(tx, goal_id, store.ids.new("g"), draft, store.now_ms())


def let_go(store: Store, goal_id: GoalId, engine: str | None, *, signed_out: bool) -> int:
    """Let go of this goal's questions about engines, because a person runs it again now; how many there were.

    One stays: the sign-in of the engine that would run (`engine`), while that says that it is `signed_out`.
    """
    with store.read() as tx:
        found = [gate for gate in gates.open_gates(tx, goal_id, 100) if _about_an_engine(gate)]
    gone = [gate for gate in found if not (signed_out and gate.dedupe_key == key(GateKind.SIGN_IN, engine or ""))]
    for gate in gone:
        with store.write() as tx:
            gates.answer(tx, gate, TRIED_AGAIN, BY_RUN, store.now_ms())
    return len(gone)


def _about_an_engine(gate: Gate) -> bool:
    return gate.kind in ENGINE_KINDS and gate.dedupe_key.startswith(f"{gate.kind}:")
