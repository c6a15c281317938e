"""A goal's quota for people: the answer first, then its numbers, then what to do. It decides nothing.

The decision's own reason is shown as it is, because scripts and people quote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loopx.presentation.renderers import words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.control_plane.quota.decision import QuotaDecision
    from loopx.control_plane.quota.spend_commit import LedgerEntry
    from loopx.runtime.pace import BudgetLine, Spike
    from loopx.runtime.quota_service import LedgerPage, PlanLine, QuotaReport

LABEL = 14


def row(label: str, text: str) -> str:
    """`    label         text`."""
    return f"    {label:<{LABEL}}{text}"


def should_run_text(made: QuotaDecision) -> str:
    """The answer of `quota should-run`."""
    lines = [f"  {headline(made.should_run, made.state)}", row("goal", made.goal_id), row("because", made.reason)]
    todo = made.selected_todo
    if todo is not None:
        lines.append(row("todo", f'{todo.todo_id} "{words.one_line(todo.title, 60)}"'))
    if made.wake_after_ms is not None and not made.should_run:
        wait = words.until(made.wake_after_ms, made.decided_at_ms)
        lines.append(row("wakes", f"{words.clock(made.wake_after_ms, made.decided_at_ms)} ({wait})"))
    lines.append(row("next", words.command(made.next_command)))
    return "\n".join(lines)


def headline(should_run: bool, state: str) -> str:
    """The answer in three words."""
    return "should run now" if should_run else f"should not run now: {state}"


def report_text(report: QuotaReport, now_ms: int) -> str:
    """`quota status GOAL`."""
    lines = [f"  {report.goal_id}   {headline(report.should_run, report.state)}", row("because", report.reason)]
    window = f"{report.window_hours:g} h"
    frees = ""
    if report.frees_at_ms is not None:
        frees = f"; a slot frees at {words.clock(report.frees_at_ms, now_ms)}"
    slots = f"{report.spent_slots} of {report.allowed_slots} in {window}{frees}"
    lines.append(row("slots", f"{slots} · {report.total_slots} since it began"))
    lines += [
        row("budget" if index == 0 else "", budget_text(line, now_ms)) for index, line in enumerate(report.budgets)
    ]
    if report.machine is not None:
        lines.append(row("machine", cap_words(report.machine, now_ms)))
    used = [amount_text(str(one.unit), one.amount) for one in report.used]
    if used:
        lines.append(row("used", words.joined(used)))
    lines += [row("unusual", spike_text(one)) for one in report.spikes]
    lines.append(row("next", words.command(report.next_command)))
    return "\n".join(lines)


def reports_text(reports: Sequence[QuotaReport], now_ms: int) -> str:
    """`quota status`: a line for each goal."""
    if not reports:
        return "  no active goal"
    return "\n".join(
        f"  {one.goal_id:<24} {one.state:<15} {one.spent_slots} of {one.allowed_slots} slots"
        + "".join(f" · {budget_text(line, now_ms)}" for line in one.budgets)
        for one in reports
    )


def _scope(line: BudgetLine) -> str:
    """`goal`, `turn`, or the length of a window."""
    return line.budget.rpartition("/")[2]


def budget_text(line: BudgetLine, now_ms: int) -> str:
    """One budget: its use, its pace, and when it ends at that pace."""
    unit = str(line.unit)
    text = f"{amount_text(unit, line.used)} of {amount_text(unit, line.limit)} per {_scope(line)}"
    if line.estimated:
        text += f" ({amount_text(unit, line.estimated)} estimated: the engine reported none)"
    if line.reserved:
        text += f", {amount_text(unit, line.reserved)} reserved"
    if line.per_hour:
        text += f", {amount_text(unit, line.per_hour)} an hour"
    if line.exhausts_at_ms is not None and line.used < line.limit:
        text += f", used up about {words.clock(line.exhausts_at_ms, now_ms)} at this pace"
    if line.frees_at_ms is not None:
        text += f", frees at {words.clock(line.frees_at_ms, now_ms)}"
    return text


def spike_text(one: Spike) -> str:
    """A run that used far more than usual."""
    unit = str(one.unit)
    return f"the last run used {amount_text(unit, one.latest)}; {amount_text(unit, one.median)} is usual"


def cap_words(line: BudgetLine, now_ms: int) -> str:
    """The machine-wide launch cap and its use."""
    text = f"{line.used} of {line.limit} launches in {line.budget.rpartition('/')[2]}, over every project"
    if line.frees_at_ms is not None:
        text += f"; one frees at {words.clock(line.frees_at_ms, now_ms)}"
    return text


def cap_text(line: BudgetLine | None, now_ms: int) -> str:
    """`quota cap`."""
    if line is None:
        return "  no cap on the launches of this machine        loopx quota cap launches=60/1h"
    return f"  {cap_words(line, now_ms)}"


def amount_text(unit: str, amount: int) -> str:
    """An amount of a budget's unit."""
    if unit == "microusd":
        return words.money(amount)
    if unit == "wall_ms":
        return words.duration(amount)
    name = unit.replace("_", " ")
    single = name.removesuffix("es" if name == "launches" else "s")
    return f"{words.short_number(amount)} {single if amount == 1 else name}"


def plan_text(lines: Iterable[PlanLine], now_ms: int) -> str:
    """`quota plan`: who would start, in order."""
    shown = [_plan_line(line, now_ms) for line in lines]
    return "\n".join(shown) if shown else "  no active goal"


def _plan_line(line: PlanLine, now_ms: int) -> str:
    when = "a person" if line.at_ms is None else words.until(line.at_ms, now_ms)
    return f"  {when:<12} {line.goal_id:<24} {line.effective_action:<28} {line.reason}"


def entry_text(entry: LedgerEntry, *, replayed: bool) -> str:
    """One entry, as `quota spend` and `void` leave it."""
    again = "  (it was on record already)" if replayed else ""
    what = "voided" if entry.kind == "void" else "spent"
    target = f" of entry {entry.voids}" if entry.voids is not None else ""
    return f"  {what} {words.count(entry.slots, 'slot')}{target} · entry {entry.run_index} · {entry.effect_ref}{again}"


def ledger_text(page: LedgerPage, now_ms: int) -> str:
    """`quota ledger`: the newest first, and whether the books balance."""
    lines = [_ledger_line(entry, now_ms) for entry in page.entries]
    balanced = (
        "the books balance" if page.spent_in_window == page.recounted else "THE BOOKS DO NOT BALANCE: loopx doctor"
    )
    total = f"{page.spent_in_window} in this window · {page.total_slots} since it began · {balanced}"
    return "\n".join([*(lines or ["  nothing spent yet"]), f"  {total}"])


def _ledger_line(entry: LedgerEntry, now_ms: int) -> str:
    sign = "-" if entry.kind == "void" else "+"
    about = f"voids {entry.voids}" if entry.voids is not None else entry.turn_key or entry.effect_ref
    when = words.clock(entry.at_ms, now_ms)
    return f"  {entry.run_index:>5}  {when:<17} {sign}{entry.slots}  {about}  {words.one_line(entry.reason, 60)}"
