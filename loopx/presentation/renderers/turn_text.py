"""Turns for people: planned, listed, shown, their journals. It adds no facts and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from loopx.presentation.renderers import run_text, words
from loopx.presentation.renderers.paint import Paint
from loopx.presentation.renderers.quota_markdown import headline, row
from loopx.runtime.progress import TurnEnded
from loopx.runtime.turn_acts import Once, Resumed, Reverted
from loopx.runtime.turn_service import (
    EvidenceLine,
    HostView,
    JournalView,
    PhaseView,
    PlanView,
    RecoveryView,
    TurnLine,
    TurnView,
)

ACTIONS = {
    "adopt_host": "its agent still runs, or left its end on record: taking that over",
    "resume_session": "its agent is gone; resuming its session",
    "run_host": "no agent was started yet: starting it",
    "evaluate": "its agent is done: judging its work (agent not run again)",
    "retry_writeback": "its work is proved: writing it back (agent not run again)",
    "spend_only": "it is written back: only the spend is left (agent not run again, nothing written again)",
    "apply": "it is spent: only scheduling is left (nothing spent again)",
    "ack_only": "only the acknowledgement of its schedule is left",
    "closeout_only": "only the goal's closeout is left",
    "nothing": "nothing is left to do",
    "blocked": "its journal contradicts itself: a person must look",
}
"""What recovery does, in words."""


def plan_text(plan: PlanView) -> str:
    """`turn plan`."""
    packet = plan.decision
    lines = [f"  {headline(plan.should_run, packet.state)}", row("because", packet.reason)]
    if plan.open_turn is not None:
        lines.append(row("open turn", f"{plan.open_turn} is resumed first"))
    if plan.refusal is not None:
        lines.append(row("refused", f"{plan.refusal}: the facts moved while they were read; plan again"))
    if plan.disposition is not None:
        lines.append(row("would", f"{plan.disposition} (route {plan.route}, {plan.reason})"))
    if plan.costs is not None:
        named = (
            ("spends a slot", plan.costs.spends_quota),
            ("launches an engine", plan.costs.launches_host),
            ("writes state", plan.costs.writes_state),
        )
        lines.append(row("costs", words.joined([text for text, does in named if does], ", ") or "nothing"))
    if packet.selected_todo is not None:
        lines.append(row("todo", f'{packet.selected_todo.todo_id} "{words.one_line(packet.selected_todo.title, 60)}"'))
    lines.append(row("next", words.command(packet.next_command)))
    return "\n".join(lines)


def list_text(lines: Sequence[TurnLine], goal_id: str, now_ms: int) -> str:
    """`turn list`: the newest first."""
    if not lines:
        return f"  {goal_id} has had no turn yet        loopx run {goal_id}"
    return "\n".join(turn_line(line, now_ms) for line in lines)


def turn_line(line: TurnLine, now_ms: int) -> str:
    """One turn in a line: number, phases, result, cost, why."""
    ended = line.ended_at_ms if line.ended_at_ms is not None else now_ms
    parts = [
        words.duration(max(0, ended - line.started_at_ms)),
        words.count(line.slots, "slot") if line.slots else "",
        words.tokens(line.tokens),
        words.money(line.cost_microusd),
        f"{line.checks_green} of {line.checks_total} checks green" if line.checks_total else "",
        words.word(words.REASONS, line.reason) if line.reason else "",
    ]
    kind = (
        line.result_kind
        if line.state == "closed"
        else f"{line.state}{f': {line.failed_phase}' if line.failed_phase else ''}"
    )
    return f"  {line.number:>4}  {run_text.bar(line.completed)}  {kind or '':<22} {words.joined(parts)}"


def show_text(view: TurnView, now_ms: int) -> str:
    """`turn show`: one turn in full."""
    turn = view.turn
    lines = [
        turn_line(turn, now_ms),
        row("key", turn.turn_key),
        row("goal", f"{turn.goal_id} at revision {view.goal_revision}"),
    ]
    if turn.todo_id is not None:
        lines.append(row("todo", f'{turn.todo_id} "{words.one_line(view.todo_title or "", 60)}"'))
    lines.append(row("decided", f"{view.rule or 'not recorded'}, route {view.route}"))
    for one in view.passed_over:
        why = words.word(words.NOT_TO_BE_HAD, one.code)
        lines.append(row("asked for", f"{run_text.engine_label(one.engine)}, which {why}"))
    for host in view.hosts:
        size = f"prompt {host.prompt_bytes} bytes, {host.overhead_bytes} of them LoopX's" if host.prompt_bytes else ""
        used = words.tokens(None if host.input_tokens is None else host.input_tokens + (host.output_tokens or 0))
        end = words.word(words.ENDS, host.end_kind) if host.end_kind else host.state
        lines.append(
            row(
                "agent",
                words.joined([run_text.engine_label(host.engine), end, size, used, words.money(host.cost_microusd)]),
            )
        )
    if view.message:
        lines.append(row("said", f'"{words.one_line(view.message, 90)}"'))
    lines += [row("found", finding) for finding in view.findings]
    if view.restored:
        lines.append(row("put back", words.one_line(", ".join(view.restored), 90)))
    if view.violation is not None:
        lines.append(row("blocked", view.violation))
    if turn.checkpoint is not None:
        lines.append(row("checkpoint", f"{turn.checkpoint[:12]} on loopx/{turn.goal_id}"))
    lines += _phases(view.phases, now_ms)
    lines += [
        row(
            "evidence" if number == 0 else "",
            f"{one.produced:<9} {one.kind:<6} {one.verdict or '':<10} {words.one_line(one.name, 60)}",
        )
        for number, one in enumerate(view.evidence)
    ]
    return "\n".join(lines)


def _host(host: HostView) -> str:
    used = None if host.input_tokens is None else host.input_tokens + (host.output_tokens or 0)
    return words.joined(
        [
            run_text.engine_label(host.engine),
            words.word(words.ENDS, host.end_kind) if host.end_kind else host.state,
            f"prompt {host.prompt_bytes} bytes, {host.overhead_bytes} of them LoopX's" if host.prompt_bytes else "",
            words.tokens(used),
            words.money(host.cost_microusd),
        ]
    )


def _evidence(one: EvidenceLine) -> str:
    return f"{one.produced:<9} {one.kind:<6} {one.verdict or '':<10} {words.one_line(one.name, 60)}"


def _phases(phases: Sequence[PhaseView], now_ms: int) -> list[str]:
    return [
        row(
            "phases" if number == 0 else "",
            f"{one.phase:<18} {words.clock(one.committed_at_ms, now_ms):<10} {one.effect_ref}",
        )
        for number, one in enumerate(phases)
    ]


def journal_text(view: JournalView, now_ms: int) -> str:
    """`turn journal`: the committed prefix, and what recovery would do."""
    failed = f", failed at {view.failed_phase}" if view.failed_phase else ""
    kind = view.result_kind or view.intended_kind or ""
    head = f"  turn {view.number} of {view.goal_id}   {run_text.bar(view.completed)}  {kind}   {view.state}{failed}"
    lines = [head]
    lines += _phases(view.phases, now_ms) or [row("phases", "none committed")]
    if view.closeout != "none":
        lines.append(row("closeout", view.closeout))
    if view.recovery is not None:
        lines.append(row("a resume", action_words(view.recovery)))
        if view.recovery.never_again:
            lines.append(row("never again", ", ".join(view.recovery.never_again)))
    return "\n".join(lines)


def action_words(found: RecoveryView) -> str:
    """What recovery does, with the violation where there is one."""
    text = words.word(ACTIONS, found.action)
    return f"{text} ({found.violation})" if found.violation else text


def once_text(done: Once) -> str:
    """What is left to say after `turn run-once`: what comes next."""
    if done.turn is None:
        lines = [f"  no turn was run: {words.word(words.RUN_ENDS, done.reason)}"]
    else:
        lines = [row("then", f"{done.disposition}; the goal is {words.word(words.STATES, done.goal_state)}")]
    if done.next_command:
        lines.append(row("next", words.command(done.next_command)))
    return "\n".join(lines)


def resumed_text(done: Resumed) -> str:
    """`turn resume`: what was found, and what came of it."""
    if done.turn_key is None or done.found is None:
        return f"  no turn of {done.goal_id} is open; nothing to resume"
    lines = [
        f"  turn {done.turn_key} had {done.completed_before} of 7 phases committed",
        row("found", action_words(done.found)),
    ]
    if done.turn is not None:
        end = f"{done.turn.result_kind}{f', stuck at {done.turn.failed_phase}' if done.turn.failed_phase else ''}"
        lines.append(
            row("now", words.joined([end, words.slots(done.turn.slots), words.word(words.REASONS, done.turn.reason)]))
        )
    return "\n".join(lines)


def reverted_text(done: Reverted) -> str:
    """`turn revert`."""
    count = words.joined(
        [words.count(done.written, "file") + " put back", f"{done.deleted} removed" if done.deleted else ""]
    )
    undo = f"the tree that was there is {done.replaced_tree}" if done.replaced_tree else ""
    return "\n".join(
        line
        for line in (f"  {count}; the branch, HEAD and your index are as they were", f"    {undo}" if undo else "")
        if line
    )


def settled_text(turn: TurnEnded, engine: str, *, replayed: bool) -> str:
    """`turn settle`: the same block as a turn of `loopx run`."""
    done = run_text.Doing(said=turn.message)
    lines = run_text.turn_lines(turn, engine, done, 7 if turn.slots else 3, {}, Paint(color=False))
    return "\n".join([*(["  settled before; nothing was done again"] if replayed else []), *lines])
