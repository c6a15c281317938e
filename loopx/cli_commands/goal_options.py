"""The flags by which people describe a goal, shared by `run`, `goal create` and `goal edit`, and what a new goal takes.

It turns words into a wish; what the wish means is decided in runtime.
"""

from __future__ import annotations

import argparse
import os
import re

from loopx.cli_commands.base import Context
from loopx.control_plane.errors import NotFoundError, StoreError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.control_plane.goal import Goal
    from loopx.runtime.config import Config
    from loopx.runtime.goal_draft import GoalWish

UNLIMITED = "unlimited"
_ID_LIKE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def limit(text: str) -> int | None:
    """A limit above 0, or None for `unlimited`, which is spelled out. Raises UsageError (`limit_invalid`)."""
    if text == UNLIMITED:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise UsageError(
            "limit_invalid",
            f"{text!r} is no limit",
            hint=f"a whole number above 0, or {UNLIMITED}; 0 does not mean without limit",
        )
    return int(text)


def whole(text: str) -> int:
    """A whole number above 0. Raises UsageError (`number_invalid`)."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise UsageError("number_invalid", f"{text!r} is not a whole number above 0", hint="for example 3")
    return int(text)


def add(parser: argparse.ArgumentParser) -> None:
    """The flags that describe a goal."""
    _several(parser, "--check", "CMD", "a command that decides whether the goal is done")
    _several(parser, "--held-out-check", "CMD", "a check that the agent is never told of")
    parser.add_argument("--check-timeout", metavar="T", help="of each check: 90s, 10m (default: 2m)")
    _several(parser, "--engine", "E", "what works on it, the best first")
    _several(parser, "--fallback", "E", "go on with E when the first engine is not available")
    parser.add_argument("--model", metavar="M", help="handed to every engine")
    parser.add_argument("--permission", metavar="P", help="read_only, workspace or bypass")
    _several(parser, "--budget", "UNIT=LIMIT/SCOPE", "tokens=2M/goal, usd=5/1d")
    parser.add_argument("--allowed-slots", type=int, metavar="N", help="turns that count, in one window")
    _several(parser, "--protect", "GLOB", "no agent may weaken these files")
    _several(parser, "--scope", "GLOB", "an agent may write only here")
    parser.add_argument("--protected-policy", metavar="P", help="refuse, both_ways or disclose")
    parser.add_argument("--no-snapshot", action="store_true", help="confirm completions in place")
    parser.add_argument("--worktree", action="store_true", help="give the goal a git worktree of its own")
    parser.add_argument("--setup", metavar="CMD", help="prepares a fresh worktree")
    parser.add_argument("--turn-timeout", metavar="T", help="of one turn: 30m, 2h (default: 1h)")


def _several(parser: argparse.ArgumentParser, flag: str, metavar: str, words: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=words)


def add_edits(parser: argparse.ArgumentParser) -> None:
    """The flags that only an edit has."""
    parser.add_argument("--objective", metavar="TEXT", help="say anew what is wanted")
    parser.add_argument("--no-fallback", action="store_true", help="only the first engine")
    parser.add_argument("--snapshot", action="store_true", help="confirm completions in a clean snapshot")
    parser.add_argument("--compute", type=float, metavar="X", help="share of the window; 0 pauses the goal")
    parser.add_argument("--window-hours", type=float, metavar="H")
    parser.add_argument("--slot-minutes", type=float, metavar="M")
    parser.add_argument("--outcome-floor", type=int, metavar="N", help="turns without an outcome before a replan")
    parser.add_argument("--breaker", type=whole, metavar="N", help="turns without any change before a replan")
    parser.add_argument("--replan-preview", choices=("yes", "no"), help="a person confirms each new plan")


def wish_of(args: argparse.Namespace, objective: str | None = None) -> GoalWish:
    """What the flags say."""
    from loopx.runtime.goal_draft import GoalWish

    snapshot = False if args.no_snapshot else True if getattr(args, "snapshot", False) else None
    preview: str | None = getattr(args, "replan_preview", None)
    return GoalWish(
        objective=objective if objective is not None else getattr(args, "objective", None),
        checks=tuple(args.check),
        held_out=tuple(args.held_out_check),
        check_timeout=args.check_timeout,
        engines=tuple(args.engine),
        fallback=tuple(args.fallback),
        no_fallback=getattr(args, "no_fallback", False),
        model=args.model,
        permission=args.permission,
        budgets=tuple(args.budget),
        protect=tuple(args.protect),
        scope=tuple(args.scope),
        policy=args.protected_policy,
        snapshot=snapshot,
        worktree=True if args.worktree else None,
        setup=args.setup,
        allowed_slots=args.allowed_slots,
        compute=getattr(args, "compute", None),
        window_hours=getattr(args, "window_hours", None),
        slot_minutes=getattr(args, "slot_minutes", None),
        outcome_floor=getattr(args, "outcome_floor", None),
        breaker=getattr(args, "breaker", None),
        turn_timeout=args.turn_timeout,
        replan_preview=None if preview is None else preview == "yes",
    )


def has_goal(context: Context, goal_id: str) -> bool:
    """Whether this very goal exists; a project without a store has none."""
    from loopx.store import goals

    try:
        session = context.session()
    except StoreError as error:
        if error.code != "store_missing":
            raise
        return False
    with session.store.read() as tx:
        return goals.exists(tx, goal_id)


def looks_like_id(text: str) -> bool:
    """Whether a word is more likely a mistyped id than an objective."""
    return _ID_LIKE.fullmatch(text) is not None


def unknown_goal(context: Context, goal_id: str) -> NotFoundError:
    """The error for a goal that does not exist, with near ids where there is a store to look in."""
    from loopx.store import goals

    hint = 'a new goal:  loopx run "OBJECTIVE" --check CMD'
    try:
        with context.session().store.read() as tx:
            goals.row_of(tx, goal_id)
    except NotFoundError as error:
        return NotFoundError(error.code, error.message, hint=f"{error.hint}   {hint}")
    except StoreError as error:
        if error.code != "store_missing":
            raise
    return NotFoundError("goal_unknown", f"no goal {goal_id!r} in this project", hint=hint)


def defaults(context: Context) -> Config:
    """The project's `loopx.toml` as a person stands behind it: what the agent of an open turn wrote counts for nothing.

    Raises UsageError (`config_malformed`, `config_invalid`).
    """
    from loopx.runtime import config, project, project_file

    try:
        session = context.session()
    except StoreError as error:
        if error.code != "store_missing":
            raise
        return config.read(project.locate(context.project_dir, context.database).root)
    trusted = project_file.read(session.store, session.project, None).trusted
    return config.parse(trusted) if trusted else config.Config()


def create(
    context: Context, wish: GoalWish, goal_id: str | None, titles: tuple[str, ...], *, engine_needed: bool = True
) -> Goal:
    """Make the goal, and the project's store if there is none. Everything that can be refused is refused before.

    Raises UsageError, EngineError (`no_engine`), ConflictError (`goal_exists`).
    """
    from loopx.control_plane.goal import TreeMode
    from loopx.runtime import goal_draft, goal_service, project

    place = project.locate(context.project_dir, context.database)
    env = dict(os.environ)
    for title in titles:
        require_title(title)
    if goal_id is not None:
        goal_service.require_goal_name(goal_id)
    definition = goal_draft.definition(wish, defaults(context), place.root, env, engine_needed=engine_needed)
    goal_service.require_definition(definition)
    goal_draft.require_runnable(definition, place.root, env)
    session = context.session(create=True)
    from pathlib import Path

    from loopx.workspace.identity import repository_key

    own_tree = definition.tree_mode is TreeMode.WORKTREE
    tree_key = session.store.ids.new("wt") if own_tree else repository_key(Path(place.root))
    return goal_service.create(session.store, session.project, definition, tree_key, goal_id=goal_id, titles=titles)


def require_title(title: str) -> None:
    """Raises UsageError (`title_empty`)."""
    if not title.strip():
        raise UsageError("title_empty", "a todo needs a title", hint="say in a few words what is to be done")
