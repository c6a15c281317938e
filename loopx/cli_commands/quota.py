"""`loopx quota`: may it run, what was spent, and raising it. A wrapper: no decision is made here.

`should-run` is started by other programs every tick, so nothing is imported here that it does not need.
"""

from __future__ import annotations

import argparse

import msgspec

from loopx.cli_commands.base import Command, Context, add_goal, goal_of, optional_goal
from loopx.control_plane.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.control_plane.ids import AgentId
    from loopx.control_plane.quota.decision import QuotaDecision
    from loopx.control_plane.quota.spend_commit import LedgerEntry
    from loopx.runtime.pace import BudgetLine
    from loopx.runtime.quota_service import PlanLine, QuotaReport
    from loopx.runtime.spending import SpendDone


def add_agent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent-id", metavar="A", help="the agent that asks (default: loopx, or the turn's own)")


def agent_of(context: Context, args: argparse.Namespace) -> AgentId:
    """The agent that was named, that of the turn whose token this process carries, or the default one."""
    from loopx.control_plane.ids import AgentId
    from loopx.runtime.session import DEFAULT_AGENT

    if args.agent_id:
        return AgentId(args.agent_id)
    caller = context.caller()
    return AgentId(caller.agent_id if caller is not None else DEFAULT_AGENT)


def _setup_should_run(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    add_agent(parser)


def _should_run(context: Context, args: argparse.Namespace) -> int:
    from loopx.control_plane.quota import decision as decisions
    from loopx.runtime.reading import decide

    goal_id = goal_of(args)
    made = decide(context.session().store, goal_id, agent_of(context, args))
    if not context.quiet:
        packet = decisions.packet(made)
        context.emit(packet, lambda: _should_run_text(made))
    return decisions.exit_code(made)


def _should_run_text(made: QuotaDecision) -> str:
    # Words are loaded only for a person: a script asks with --json or -q.
    from loopx.presentation.renderers.quota_markdown import should_run_text

    return should_run_text(made)


class _Reports(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx quota status --json`."""

    goals: tuple[QuotaReport, ...]


def _setup_status(parser: argparse.ArgumentParser) -> None:
    add_goal(parser, required=False)
    add_agent(parser)
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="goals at most (default: 50)")


def _status(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.quota_markdown import report_text, reports_text
    from loopx.runtime import quota_service

    store, agent = context.session().store, agent_of(context, args)
    goal_id = optional_goal(args)
    if goal_id is not None:
        one = quota_service.report(store, goal_id, agent)
        context.emit(one, lambda: report_text(one, store.now_ms()))
        return 0
    with store.read() as tx:
        names = [row["goal_id"] for row in tx.all("goals.active_page", after="", limit=args.limit)]
    reports = tuple(quota_service.report(store, name, agent) for name in names)
    context.emit(_Reports(goals=reports), lambda: reports_text(reports, store.now_ms()))
    return 0


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx quota plan --json`."""

    goals: tuple[PlanLine, ...]
    next_start_ms: int | None


def _setup_plan(parser: argparse.ArgumentParser) -> None:
    add_agent(parser)
    parser.add_argument("--limit", type=int, default=200, metavar="N", help="goals at most (default: 200)")
    parser.add_argument("--after", default="", metavar="GOAL", help="go on behind this goal")


def _plan(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.quota_markdown import plan_text
    from loopx.runtime import quota_service

    store = context.session().store
    lines = quota_service.plan(store, agent_of(context, args), after=args.after, limit=args.limit)
    instants = [line.at_ms for line in lines if line.at_ms is not None]
    payload = _Plan(goals=lines, next_start_ms=min(instants, default=None))
    context.emit(payload, lambda: plan_text(lines, store.now_ms()))
    return 0


class _Committed(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx quota spend` and `void`: the entry that stands for the effect, first and only once."""

    goal_id: str
    committed: bool
    replayed: bool
    effect_ref: str
    run_index: int
    entry: LedgerEntry


def _setup_spend(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--effect-ref", metavar="REF", help="the spend's identity (default: the turn's own)")
    parser.add_argument("--turn", metavar="KEY", help="the turn whose writeback this charges")
    parser.add_argument("--todo", metavar="T", help="the todo whose last turn this charges")
    parser.add_argument("--run-index", type=int, metavar="N", help="refuse when the ledger has moved from N")


def _spend(context: Context, args: argparse.Namespace) -> int:
    import os

    from loopx.presentation.renderers.quota_markdown import entry_text
    from loopx.runtime import quota_service, spending

    if context.caller() is not None:
        raise UsageError("inside_turn", "this turn spends by itself when it is settled", hint="loopx todo complete")
    session = context.session()
    asked = spending.SpendAsked(
        goal_id=goal_of(args),
        effect_ref=args.effect_ref,
        turn_key=args.turn,
        todo_id=args.todo,
        run_index=args.run_index,
    )
    done = quota_service.spend(session.store, session.project, asked, dict(os.environ))
    context.emit(_committed(done), lambda: entry_text(done.entry, replayed=done.replayed))
    return 0


def _committed(done: SpendDone) -> _Committed:
    return _Committed(
        goal_id=done.entry.goal_id,
        committed=True,
        replayed=done.replayed,
        effect_ref=done.entry.effect_ref,
        run_index=done.entry.run_index,
        entry=done.entry,
    )


def _setup_void(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="GOAL ENTRY", help="the goal, and the run index of its spend")
    parser.add_argument("--goal-id", metavar="G", help="the same as GOAL")
    parser.add_argument("--reason", required=True, metavar="WHY", help="why it is taken off")
    parser.add_argument("--effect-ref", metavar="REF", help="the void's identity (default: one for each entry)")
    parser.add_argument("--run-index", type=int, metavar="N", help="refuse when the ledger has moved from N")


def _void(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.quota_markdown import entry_text
    from loopx.runtime import quota_service

    words = ([args.goal_id] if args.goal_id else []) + list(args.words)
    if len(words) != 2 or not words[1].isdigit():
        raise UsageError(
            "usage", "name the goal and the run index of its spend", hint="loopx quota void GOAL ENTRY --reason WHY"
        )
    context.require_person("voiding a spend")
    goal_id, index = words
    done = quota_service.void(
        context.session().store, goal_id, int(index), args.reason, args.effect_ref, args.run_index
    )
    context.emit(_committed(done), lambda: entry_text(done.entry, replayed=done.replayed))
    return 0


def _setup_ledger(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="entries, the newest first (default: 50)")


def _ledger(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.quota_markdown import ledger_text
    from loopx.runtime import quota_service

    store = context.session().store
    page = quota_service.ledger_page(store, goal_of(args), args.limit)
    context.emit(page, lambda: ledger_text(page, store.now_ms()))
    return 0


class _Raised(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx quota raise --json`."""

    goal_id: str
    revision: int
    quota: QuotaReport


def _setup_raise(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--slots", type=int, metavar="N", help="slots in one window")
    parser.add_argument("--compute", type=float, metavar="X", help="share of the window; 0 pauses the goal")
    parser.add_argument("--window-hours", type=float, metavar="H", help="the rolling window's length")
    parser.add_argument("--slot-minutes", type=float, metavar="M", help="the length that sizes one slot")
    parser.add_argument(
        "--outcome-floor", type=int, metavar="N", help="delivered turns without an outcome before a hold"
    )
    parser.add_argument(
        "--budget",
        action="append",
        default=[],
        metavar="UNIT=LIMIT[/SCOPE]",
        help="a budget beside the slots: tokens=2M/goal, usd=5/1d, turns=24, wall=2h/turn, usd=unlimited",
    )


def _raise(context: Context, args: argparse.Namespace) -> int:
    from loopx.control_plane.ids import AgentId
    from loopx.presentation.renderers.quota_markdown import report_text
    from loopx.runtime import quota_service
    from loopx.runtime.session import DEFAULT_AGENT

    goal_id = goal_of(args)
    context.require_person("raising a quota")
    store = context.session().store
    wanted = quota_service.Raise(
        slots=args.slots,
        compute=args.compute,
        window_hours=args.window_hours,
        slot_minutes=args.slot_minutes,
        outcome_floor=args.outcome_floor,
        budgets=tuple(args.budget),
    )
    revision = quota_service.raise_quota(store, goal_id, wanted)
    report = quota_service.report(store, goal_id, AgentId(DEFAULT_AGENT))
    payload = _Raised(goal_id=goal_id, revision=revision, quota=report)
    context.emit(payload, lambda: report_text(report, store.now_ms()))
    return 0


class _Capped(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx quota cap --json`: the machine-wide launch cap; null where there is none."""

    machine: BudgetLine | None


def _setup_cap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "cap", nargs="?", metavar="launches=N/WINDOW", help="the cap, such as launches=60/1h; unlimited takes it away"
    )


def _cap(context: Context, args: argparse.Namespace) -> int:
    from loopx.control_plane.quota.budgets import UNLIMITED, parse_machine_cap
    from loopx.presentation.renderers.quota_markdown import cap_text
    from loopx.runtime import machine
    from loopx.runtime.clock import SystemClock
    from loopx.runtime.pace import machine_line

    now_ms = SystemClock().now_ms()
    if args.cap is not None:
        context.require_person("setting the machine's cap")
        wanted = args.cap.strip().lower()
        machine.set_cap(None if wanted == UNLIMITED else parse_machine_cap(wanted), now_ms)
    use = machine.use(now_ms)
    line = machine_line((use,)) if use is not None else None
    context.emit(_Capped(machine=line), lambda: cap_text(line, now_ms))
    return 0


COMMANDS = (
    Command(
        verb="should-run",
        help="may this goal run a turn now? exits 0 run, 10 not now, 11 needs a person, 12 a cap is reached",
        setup=_setup_should_run,
        run=_should_run,
        epilog="a correct shell loop:  loopx quota should-run -q GOAL && my-agent",
    ),
    Command(verb="status", help="slots, budgets and their pace", setup=_setup_status, run=_status),
    Command(verb="plan", help="every active goal, in the order in which it would start", setup=_setup_plan, run=_plan),
    Command(
        verb="spend",
        help="charge a slot for a writeback that is committed",
        setup=_setup_spend,
        run=_spend,
        epilog="a repeat with the same effect is the same entry; work of your own runner: loopx turn settle",
    ),
    Command(verb="void", help="take one spend off, with a reason", setup=_setup_void, run=_void),
    Command(verb="ledger", help="every spend and void", setup=_setup_ledger, run=_ledger),
    Command(verb="raise", help="other limits (people only)", setup=_setup_raise, run=_raise),
    Command(
        verb="cap",
        help="how many turns this machine may start in a window, over every project (people set it)",
        setup=_setup_cap,
        run=_cap,
        epilog="goals wait when it is used up, and run when the oldest launch leaves the window",
    ),
)
