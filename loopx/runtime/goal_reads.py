"""A goal as its person wrote it and as it stands, for `goal list` and `goal show`. Bounded reads; no decisions."""

from __future__ import annotations

import msgspec

from loopx.contracts.model import Check, Contract
from loopx.control_plane.goal import GoalDefinition, GoalState
from loopx.control_plane.quota.budgets import budget_words
from loopx.control_plane.work_items.todo import ENDED_TODO_STATUSES
from loopx.runtime.progress import CheckSummary
from loopx.runtime.summaries import checks_of
from loopx.store import gates, goals, ledger, todos, turns
from loopx.store.connection import Row, Tx
from loopx.store.store import Store

_TODOS = 500


class GoalLine(msgspec.Struct, frozen=True, kw_only=True):
    """A goal in a list."""

    goal_id: str
    state: str
    objective: str
    contract: str
    turns: int
    updated_at_ms: int


class GoalPage(msgspec.Struct, frozen=True, kw_only=True):
    """`next_after`: the cursor of the next page, None at the end."""

    goals: tuple[GoalLine, ...]
    next_after: str | None


class CheckShown(msgspec.Struct, frozen=True, kw_only=True):
    """A check's definition, and its last verdict where one is known."""

    name: str
    command: str
    timeout_s: int
    kind: str
    primary: bool
    held_out: bool
    last: CheckSummary | None = None


class GoalShown(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a person may want to know of one goal."""

    goal_id: str
    state: str
    revision: int
    objective: str
    root: str
    engines: tuple[str, ...]
    fallback: bool
    model: str | None
    permission: str
    tree_mode: str
    write_scope: tuple[str, ...]
    protected: tuple[str, ...]
    protected_policy: str
    confirm_in_snapshot: bool
    checks: tuple[CheckShown, ...]
    contract: str
    allowed_slots: int
    spent_slots: int
    window_hours: float
    budgets: tuple[str, ...]
    turns: int
    last_result: str | None
    open_todos: int
    ended_todos: int
    open_gates: tuple[str, ...]
    branch: str | None
    created_at_ms: int
    updated_at_ms: int


def page(store: Store, *, state: GoalState | None, after: str, limit: int) -> GoalPage:
    """Goals by id, from a cursor; of one state when that is asked for."""
    lines: list[GoalLine] = []
    with store.read() as tx:
        while len(lines) <= limit:
            rows = tx.all("goals.page", after=after, limit=limit + 1)
            lines += [_line(row) for row in rows if state is None or row["state"] == state]
            if len(rows) <= limit:
                break
            after = rows[-1]["goal_id"]
    more = len(lines) > limit
    shown = tuple(lines[:limit])
    return GoalPage(goals=shown, next_after=shown[-1].goal_id if more and shown else None)


def _line(row: Row) -> GoalLine:
    return GoalLine(
        goal_id=row["goal_id"],
        state=row["state"],
        objective=row["objective"],
        contract=row["contract_state"],
        turns=row["turn_count"],
        updated_at_ms=row["updated_at_ms"],
    )


def show(store: Store, goal_id: str) -> GoalShown:
    """Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
        goal = goals.get(tx, goal_id)
        definition = goal.definition
        contract = msgspec.json.decode(definition.contract, type=Contract)
        work = todos.page(tx, goal_id, limit=_TODOS)
        ended = sum(1 for todo in work if todo.status in ENDED_TODO_STATUSES)
        last = turns.last_of_goal(tx, goal_id)
        return GoalShown(
            goal_id=goal_id,
            state=goal.state,
            revision=goal.revision,
            objective=definition.objective,
            root=goal.root,
            engines=definition.engines,
            fallback=definition.fallback,
            model=definition.model,
            permission=definition.permission,
            tree_mode=definition.tree_mode,
            write_scope=definition.boundary.write_scope,
            protected=contract.protected,
            protected_policy=contract.policy,
            confirm_in_snapshot=contract.confirm_in_snapshot,
            checks=checks_shown(tx, goal_id, contract),
            contract=row["contract_state"],
            allowed_slots=row["allowed_slots"],
            spent_slots=ledger.spent_in_window(tx, goal_id, row["window_ms"], store.now_ms()),
            window_hours=definition.quota.window_hours,
            budgets=tuple(budget_words(budget) for budget in definition.budgets),
            turns=row["turn_count"],
            last_result=str(last.result_kind) if last is not None and last.result_kind else None,
            open_todos=len(work) - ended,
            ended_todos=ended,
            open_gates=tuple(gate.gate_id for gate in gates.open_gates(tx, goal_id)),
            branch=f"loopx/{goal_id}" if row["last_checkpoint"] else None,
            created_at_ms=goal.created_at_ms,
            updated_at_ms=goal.updated_at_ms,
        )


def checks_shown(tx: Tx, goal_id: str, contract: Contract) -> tuple[CheckShown, ...]:
    """Each check with its verdict of the last turn that judged it, else of the baseline."""
    found = _last_verdicts(tx, goal_id)
    return tuple(check_shown(check, found.get(check.name)) for check in contract.checks)


def check_shown(check: Check, last: CheckSummary | None = None) -> CheckShown:
    return CheckShown(
        name=check.name,
        command=command_text(check),
        timeout_s=check.timeout_s,
        kind=check.kind,
        primary=check.primary,
        held_out=check.held_out,
        last=last,
    )


def command_text(check: Check) -> str:
    """A check's command as one line for a shell."""
    import shlex

    return check.command if isinstance(check.command, str) else shlex.join(check.command)


def _last_verdicts(tx: Tx, goal_id: str) -> dict[str, CheckSummary]:
    from loopx.contracts.baseline import Baseline
    from loopx.runtime.evaluation import summarise
    from loopx.store.codec import load

    row = goals.row_of(tx, goal_id)
    found: dict[str, CheckSummary] = {}
    if row["baseline"] is not None:
        baseline = load(row["baseline"], Baseline)
        found.update({result.name: summarise(result) for result in baseline.evaluation.results})
    for turn in turns.page(tx, goal_id, limit=5):
        judged = checks_of(tx, turn.turn_key)
        if judged:
            found.update({check.name: check for check in judged})
            break
    return found


def definition_of(store: Store, goal_id: str) -> tuple[GoalDefinition, int]:
    """The definition and its revision, for an edit. Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        goal = goals.get(tx, goal_id)
    return goal.definition, goal.revision
