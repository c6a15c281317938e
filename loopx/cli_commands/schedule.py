"""`loopx schedule`: a goal's cadence, and who owns it. A wrapper: the transitions are decided elsewhere."""

from __future__ import annotations

import argparse
import os

import msgspec

from loopx.cli_commands.base import Command, Context, add_goal, goal_of
from loopx.control_plane.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.control_plane.scheduler.schedule import Wanted
    from loopx.runtime.schedule_install import Outcome, Plan
    from loopx.runtime.schedule_service import ScheduleView


def _emit(context: Context, view: ScheduleView) -> int:
    from loopx.presentation.renderers.schedule_text import show_text

    now = context.session().store.now_ms()
    context.emit(view, lambda: show_text(view, now))
    return 0


def _show(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import schedule_service

    return _emit(context, schedule_service.show(context.session().store, goal_of(args)))


def _setup_set(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    rule = parser.add_mutually_exclusive_group(required=True)
    rule.add_argument("--rrule", metavar="RULE", help="RFC 5545, such as FREQ=DAILY;BYHOUR=2;BYMINUTE=30")
    rule.add_argument("--every", metavar="TIME", help="30m, 6h, 1d")
    rule.add_argument("--none", action="store_true", help="no cadence: run as soon as it may")
    parser.add_argument("--zone", metavar="ZONE", help="an IANA name (default: this machine's)")
    parser.add_argument("--dtstart", metavar="TIME", help="first local time, YYYY-MM-DDTHH:MM (default: now)")
    parser.add_argument("--owner", default="loopx", metavar="O", help="loopx (default), systemd, cron or host")


def _set(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import schedule_service

    goal_id = goal_of(args)
    context.require_person("setting a cadence")
    store = context.session().store
    return _emit(context, schedule_service.set_cadence(store, goal_id, _wanted(args, store.now_ms())))


def _wanted(args: argparse.Namespace, now_ms: int) -> Wanted:
    """What the flags want. Raises UsageError naming the field."""
    from loopx.control_plane.quota.amounts import parse_duration_ms
    from loopx.control_plane.scheduler.schedule import ScheduleOwner, Wanted
    from loopx.runtime import schedule_service

    if args.owner not in tuple(ScheduleOwner):
        raise UsageError(
            "owner_unknown",
            f"owner: {args.owner!r} is no owner",
            hint=f"use one of {', '.join(ScheduleOwner)}",
            data={"field": "owner"},
        )
    owner, zone = ScheduleOwner(args.owner), args.zone or schedule_service.local_zone()
    if args.none:
        return Wanted(rrule=None, zone=zone, owner=owner)
    rule = args.rrule or schedule_service.every(parse_duration_ms(args.every, field="every"))
    start = args.dtstart or schedule_service.starting_now(zone, now_ms)
    return Wanted(rrule=rule, zone=zone, dtstart_local=start, owner=owner)


def _setup_apply(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--revision", type=int, metavar="N", help="refuse when another one is wanted")


def _apply(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import schedule_service

    goal_id = goal_of(args)
    context.require_person("applying a cadence")
    return _emit(context, schedule_service.apply(context.session().store, goal_id, args.revision))


def _setup_ack(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--revision", type=int, required=True, metavar="N", help="the revision that the owner has")
    parser.add_argument("--rrule", required=True, metavar="RULE", help="the rule that the owner has; none for no rule")


def _ack(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import schedule_service

    goal_id = goal_of(args)
    _refuse_inside_turn(context)
    rule = None if args.rrule == "none" else args.rrule
    return _emit(context, schedule_service.ack(context.session().store, goal_id, args.revision, rule))


def _setup_fail(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--revision", type=int, required=True, metavar="N", help="the revision that failed")
    parser.add_argument("--reason", required=True, metavar="WHY", help="what went wrong")


def _fail(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import schedule_service

    goal_id = goal_of(args)
    _refuse_inside_turn(context)
    return _emit(context, schedule_service.fail(context.session().store, goal_id, args.revision, args.reason))


def _refuse_inside_turn(context: Context) -> None:
    """The owner outside may be a script of anybody's, but never the agent of a turn."""
    if context.caller() is not None:
        context.require_person("confirming a cadence")


class _Installed(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx schedule install --json`."""

    goal_id: str
    plan: Plan
    outcome: Outcome | None
    schedule: ScheduleView


def _setup_install(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--print", dest="only_print", action="store_true", help="print what would be written, no more")
    parser.add_argument("--remove", action="store_true", help="take the goal's timer and crontab line away")


def _install(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers import schedule_text
    from loopx.runtime import schedule_install, schedule_service
    from loopx.store import goals, schedules

    goal_id, session = goal_of(args), context.session()
    env, store = dict(os.environ), session.store
    with store.read() as tx:
        goals.row_of(tx, goal_id)
        schedule = schedules.get(tx, goal_id)
    if args.remove:
        context.require_person("removing a timer")
        removed = schedule_install.remove(goal_id, session.project, env)
        context.emit(
            _Removed(goal_id=goal_id, removed=removed), lambda: "\n".join(f"  removed {one}" for one in removed)
        )
        return 0
    made = schedule_install.plan(schedule, session.project, env)
    view = schedule_service.show(store, goal_id)
    if args.only_print:
        payload = _Installed(goal_id=goal_id, plan=made, outcome=None, schedule=view)
        context.emit(payload, lambda: schedule_text.plan_text(made))
        return 0
    context.require_person("installing a timer")
    schedule_service.apply(store, goal_id)
    outcome = schedule_install.install(made)
    if outcome.confirmed:
        view = schedule_service.ack(store, goal_id, schedule.revision, schedule.rrule)
    else:
        view = schedule_service.show(store, goal_id)
    payload = _Installed(goal_id=goal_id, plan=made, outcome=outcome, schedule=view)
    context.emit(payload, lambda: schedule_text.outcome_text(outcome, view, store.now_ms()))
    return 0


class _Beaten(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx schedule beat --json`."""

    goal_id: str
    beat_key: str
    revision: int
    should_run: bool
    effective_action: str
    replayed: bool
    next_command: tuple[str, ...]
    exit_code: int


def _setup_beat(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--key", required=True, metavar="K", help="the beat's own name, the same at every repeat")
    parser.add_argument(
        "--revision", type=int, metavar="N", help="the cadence by which it fired (default: the applied)"
    )
    parser.add_argument("--slot", metavar="S", help="its occurrence; one that was run already is refused")
    parser.add_argument("--agent-id", metavar="A", help="the agent that was woken (default: loopx)")


def _beat(context: Context, args: argparse.Namespace) -> int:
    from loopx.cli_commands.quota import agent_of
    from loopx.presentation.renderers.schedule_text import beat_text
    from loopx.runtime import beating

    goal_id, store = goal_of(args), context.session().store
    told = beating.Beating(
        goal_id=goal_id,
        agent_id=agent_of(context, args),
        key=args.key,
        revision=args.revision,
        slot_key=args.slot,
    )
    done = beating.beat(store, told)
    receipt = done.receipt
    payload = _Beaten(
        goal_id=goal_id,
        beat_key=receipt.beat_key,
        revision=receipt.revision,
        should_run=receipt.should_run,
        effective_action=receipt.effective_action,
        replayed=receipt.replayed,
        next_command=done.next_command,
        exit_code=done.exit_code,
    )
    if not context.quiet:
        context.emit(payload, lambda: beat_text(done))
    return done.exit_code


class _Removed(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx schedule install --remove --json`."""

    goal_id: str
    removed: tuple[str, ...]


COMMANDS = (
    Command(verb="show", help="what is wanted, what its owner has, and when it fires", setup=add_goal, run=_show),
    Command(
        verb="set",
        help="want another cadence (people only)",
        setup=_setup_set,
        run=_set,
        epilog="loopx schedule set nightly --rrule 'FREQ=DAILY;BYHOUR=2;BYMINUTE=30' --zone Europe/Berlin",
    ),
    Command(verb="apply", help="write the wanted revision as applied", setup=_setup_apply, run=_apply),
    Command(verb="ack", help="confirm what an owner outside really has", setup=_setup_ack, run=_ack),
    Command(verb="fail", help="record that the owner could not take it", setup=_setup_fail, run=_fail),
    Command(
        verb="beat",
        help="an engine's own automation says that it fired, once; exits as should-run does",
        setup=_setup_beat,
        run=_beat,
        epilog="a repeat of a key gets the first answer:  loopx schedule beat -q GOAL --key 2026-03-29T02 && my-agent",
    ),
    Command(
        verb="install",
        help="write a systemd user timer or a crontab line, and read it back",
        setup=_setup_install,
        run=_install,
    ),
)
