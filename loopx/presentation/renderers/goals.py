"""Goals as text: the list, and one goal whole."""

from __future__ import annotations

from loopx.presentation.renderers import run_text, words
from loopx.presentation.renderers.paint import Paint
from loopx.runtime.goal_reads import CheckShown, GoalPage, GoalShown
from loopx.runtime.goal_stop import Stopped


def page_text(page: GoalPage, now_ms: int) -> str:
    """One line for each goal, and the cursor of what follows."""
    if not page.goals:
        return '  no goals yet   loopx run "OBJECTIVE" --check CMD'
    wide = min(40, max(len(goal.goal_id) for goal in page.goals))
    lines = [
        f"  {goal.goal_id:<{wide}}  {words.word(words.STATES, goal.state):<7}  {words.count(goal.turns, 'turn'):<9}  "
        f"{words.ago(goal.updated_at_ms, now_ms):<12}  {words.one_line(goal.objective, 60)}"
        for goal in page.goals
    ]
    if page.next_after is not None:
        lines.append(f"  more:  loopx goal list --after {page.next_after}")
    return "\n".join(lines)


def goal_text(goal: GoalShown, now_ms: int, paint: Paint) -> str:
    """One goal: what is wanted, what judges it, what bounds it, how it stands."""
    lines = [
        f"  {paint.bold(goal.goal_id)}   {words.word(words.STATES, goal.state)}{words.DOT}revision {goal.revision}"
        f"{words.DOT}made {words.ago(goal.created_at_ms, now_ms)}",
        *_row("objective", f'"{words.one_line(goal.objective, 200)}"'),
        *[line for check in goal.checks for line in check_rows(check, paint)],
        *_row("contract", _contract(goal)),
        *_row("engines", _engines(goal, paint)),
        *_row("tree", _tree(goal)),
        *_row("quota", _quota(goal)),
        *_row("todos", f"{goal.open_todos} open, {goal.ended_todos} ended"),
        *_row("turns", words.joined([str(goal.turns), f"last {goal.last_result}" if goal.last_result else ""])),
    ]
    if goal.open_gates:
        lines += _row("asks", f"loopx gate show {goal.open_gates[0]}")
    return "\n".join([*lines, *_row("next", next_step(goal))])


def _row(name: str, text: str) -> list[str]:
    return [f"    {name:<11}{text}"] if text else []


def check_rows(check: CheckShown, paint: Paint) -> list[str]:
    """A check: its last verdict, its name, and the command where that says more."""
    last = check.last
    state = f"{run_text.verdict(last, paint)}  {run_text.numbers(last)}" if last is not None else "not run yet"
    marks = words.joined(
        ["held out" if check.held_out else "", "primary" if check.primary else "", _kind(check.kind)], ", "
    )
    name = check.name + (f" ({marks})" if marks else "")
    lines = _row("check", run_text.columns(name, state.rstrip(), 44))
    return lines if check.command == check.name else [*lines, f"               {words.one_line(check.command, 100)}"]


def _kind(kind: str) -> str:
    return "" if kind == "check" else kind


def _contract(goal: GoalShown) -> str:
    snapshot = "confirmed in a clean snapshot" if goal.confirm_in_snapshot else "confirmed in place"
    protects = f"protects {', '.join(goal.protected)} too" if goal.protected else ""
    return words.joined([goal.contract, snapshot, f"protected files: {goal.protected_policy}", protects])


def _engines(goal: GoalShown, paint: Paint) -> str:
    names = ", then ".join(map(run_text.engine_label, goal.engines if goal.fallback else goal.engines[:1]))
    bypass = paint.yellow("permission bypass") if goal.permission == "bypass" else f"permission {goal.permission}"
    return words.joined([names or "none yet", f"model {goal.model}" if goal.model else "", bypass])


def _tree(goal: GoalShown) -> str:
    where = "a worktree of its own" if goal.tree_mode == "worktree" else goal.root
    scope = f"writes only {', '.join(goal.write_scope)}" if goal.write_scope else ""
    return words.joined([where, f"branch {goal.branch}" if goal.branch else "", scope])


def _quota(goal: GoalShown) -> str:
    slots = f"{goal.spent_slots} of {goal.allowed_slots} slots in {goal.window_hours:g} h"
    return words.joined([slots, ", ".join(goal.budgets)])


def next_step(goal: GoalShown) -> str:
    """A command that moves the goal on, from whatever state."""
    if goal.state in ("completed", "cancelled"):
        return f"loopx goal reopen {goal.goal_id}"
    if goal.state in ("paused", "stopped"):
        return f"loopx goal resume {goal.goal_id}"
    if not goal.engines:
        return f"loopx run {goal.goal_id} --engine E"
    return f"loopx run {goal.goal_id}"


def moved_text(goal_id: str, state: str, then: str) -> str:
    """A goal that moved to another state, and the next step."""
    return f"  {goal_id}  {words.word(words.STATES, state)}   {then}".rstrip()


def stopped_text(done: Stopped) -> str:
    """What a stop found and ended."""
    what = ""
    if done.running is not None:
        what = f"process {done.running} ends its turn now; the tree is kept"
    elif done.ended_turn is not None:
        what = "a turn that nobody drove any more was ended; the tree is kept"
    then = "loopx goal reopen" if done.state == "cancelled" else "loopx goal resume"
    return moved_text(done.goal_id, done.state, words.joined([what, f"{then} {done.goal_id}"]))
