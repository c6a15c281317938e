"""Checkpoints: one commit per committed turn on `refs/heads/loopx/<goal>`, written by plumbing.

A commit is a pure function of its inputs (tree, parent, turn, effect, subject, time), so a crash between writing it
and moving the branch is healed by calling again, and a repeat is recognised by its trailer (architecture, "Effects
and exactly-once"). Everything a commit needs is copied into the project's own object store before the branch moves.
It runs no hook, signs nothing, and never touches the user's HEAD, branch or index.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loopx.control_plane.errors import ConflictError, NotFoundError, UsageError
from loopx.control_plane.ids import EffectRef, GoalId, TurnKey
from loopx.workspace import git, refs, tree
from loopx.workspace.repository import Kind, Repository, open_repository

TURN_TRAILER = "LoopX-Turn"
EFFECT_TRAILER = "LoopX-Effect"
BASE_TRAILER = "LoopX-Base"
_UNPACK_LIMIT = 100
_BATCH = 200
_LOG_FORMAT = "%H%x00%P%x00%T%x00%ce%x00%ct%x00%B"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The work tree at a goal's start, dirty files included, kept by `refs/loopx/base/<goal>`.

    `dirty` says whether it differed from the user's HEAD.
    """

    goal_id: str
    tree_hash: str
    commit: str
    head: str | None
    branch: str | None
    kind: Kind
    dirty: bool


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One commit that LoopX wrote, read back. `parent` is None for the first commit of an empty repository."""

    sha: str
    parent: str | None
    tree_hash: str
    turn_key: str
    effect_ref: str
    subject: str
    when_ms: int


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at the goal's branch found: its tip, LoopX's newest checkpoint there, the one of an effect."""

    tip: str | None
    newest: Checkpoint | None
    same: Checkpoint | None


def branch_ref(goal_id: GoalId) -> str:
    """The full name of the goal's branch."""
    return f"refs/heads/loopx/{goal_id}"


def base(
    root: Path, state_dir: Path, goal_id: GoalId, when_ms: int, *, replace: bool = False, kind: Kind | None = None
) -> Base:
    """Record the work tree as it is now as the goal's base.

    Called again for an unchanged tree it returns the same base. Raises `ConflictError` (`base_exists` unless
    `replace`; `branch_exists` when the goal's branch is there already), `UsageError` (`bad_goal_name`) and what
    `capture` raises.
    """
    repo = open_repository(root, state_dir, kind=kind)
    ref = _base_ref(repo, goal_id)
    known = _read_base(repo, goal_id)
    state = tree.capture_repository(repo)
    if known is not None and not replace:
        if (known.tree_hash, known.head) == (state.tree_hash, state.head):
            return msgspec.structs.replace(known, branch=state.branch)
        raise ConflictError(
            "base_exists", f"goal {goal_id} already has another base", hint="Go on with that goal, or discard it first."
        )
    if tip(repo, goal_id) is not None:
        raise ConflictError(
            "branch_exists",
            f"the branch loopx/{goal_id} is already there",
            hint=f"Keep it under another name (git branch -m loopx/{goal_id} NAME) or delete it.",
        )
    message = f"LoopX: the work tree at the start of {goal_id}\n\n{BASE_TRAILER}: {goal_id}\n"
    commit = write_commit(repo, state.tree_hash, state.head, message, when_ms)
    _publish(repo, commit, state.head)
    moved = refs.set_ref(repo, ref, commit, None, "loopx: base")
    if moved.status:
        raise git.failure(("update-ref", ref), moved.status, moved.stderr)
    return _base_of(repo, goal_id, state.branch, commit, state.head, state.tree_hash)


def read_base(repo: Repository, goal_id: GoalId) -> Base:
    """The goal's recorded base; raises `NotFoundError` (`base_missing`)."""
    found = _read_base(repo, goal_id)
    if found is None:
        raise NotFoundError("base_missing", f"no start of goal {goal_id} is recorded in {repo.root}")
    return found


def drop_base(repo: Repository, goal_id: GoalId) -> None:
    """Forget the goal's base (its objects may then be pruned by git); the branch stays."""
    repo.git("update-ref", "-d", _base_ref(repo, goal_id), into_project=True)


def commit_checkpoint(
    repo: Repository,
    *,
    goal_id: GoalId,
    tree_hash: str,
    parent: str | None,
    turn_key: TurnKey,
    effect_ref: EffectRef,
    subject: str,
    when_ms: int,
    known: History | None = None,
) -> str:
    """Commit a captured tree onto the goal's branch and return the commit's name. Twice makes one commit.

    `parent` is the branch's tip as the caller knows it; None for the first commit, whose parent is then the user's
    HEAD (a caller that wants the user's own uncommitted work apart gives the base's commit). `known` is what the
    caller has just read of the branch, which is moved only if it is still so. Raises `ConflictError`
    (`effect_reused`, `branch_not_ours`, `branch_checked_out`, `branch_moved`, `branch_name_blocked`), `UsageError`
    (`bad_goal_name`, `bad_trailer`) and `NotFoundError` (`tree_missing`).
    """
    ref = _checked_ref(branch_ref(goal_id))
    tree.require_tree(repo, tree_hash)
    for value in (turn_key, effect_ref):
        _refuse_control_letters(value)
    known = known or history(repo, goal_id, effect_ref)
    if known.same is not None:
        return _same_effect(known.same, tree_hash)
    current = known.tip
    _refuse_foreign(repo, goal_id, ref, current, known.newest)
    first = current is None
    if not first and current != parent:
        raise _moved(goal_id, parent, current)
    onto = parent or tree.head(repo)
    title = _CONTROL.sub(" ", subject).strip() or "LoopX turn"
    message = f"{title}\n\n{TURN_TRAILER}: {turn_key}\n{EFFECT_TRAILER}: {effect_ref}\n"
    commit = write_commit(repo, tree_hash, onto, message, when_ms)
    _publish(repo, commit, onto)
    _advance(repo, goal_id, ref, commit, current)
    return commit


def history(repo: Repository, goal_id: GoalId, effect_ref: EffectRef) -> History:
    """The goal's branch, and on it the checkpoint with this effect, read back by its trailer."""
    end = tip(repo, goal_id)
    newest: Checkpoint | None = None
    for one in _walk(repo, end):
        newest = newest or one
        if one.effect_ref == effect_ref:
            return History(tip=end, newest=newest, same=one)
    return History(tip=end, newest=newest, same=None)


def checkpoints(repo: Repository, goal_id: GoalId) -> tuple[Checkpoint, ...]:
    """The goal's checkpoints, newest first, down to the first commit that is not LoopX's."""
    return tuple(_walk(repo, tip(repo, goal_id)))


def tip(repo: Repository, goal_id: GoalId) -> str | None:
    """The commit that the goal's branch names; None when there is no such branch."""
    return _resolve(repo, _checked_ref(branch_ref(goal_id)))


def tree_of(repo: Repository, name: str) -> str:
    """The tree of a commit (or of a tree); raises `NotFoundError` (`tree_missing`)."""
    tree.refuse_options(name)
    found = repo.git("rev-parse", "-q", "--verify", f"{name}^{{tree}}", expect=(0, 1, 128))
    if found.status:
        tree.require_tree(repo, name)
        raise git.failure(("rev-parse", name), found.status, found.stderr)
    return found.line


def write_commit(repo: Repository, tree_hash: str, parent: str | None, message: str, when_ms: int) -> str:
    """Write a commit object (not yet visible to the user's git); equal inputs give the equal commit."""
    date = f"@{when_ms // 1000} +0000"
    parents = ("-p", parent) if parent else ()
    return repo.git(
        *("commit-tree", tree_hash, *parents),
        stdin=message.encode("utf-8", "replace"),
        env={"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date},
    ).line


def publish_commit(repo: Repository, tree_hash: str, message: str, when_ms: int) -> str:
    """A commit of this tree on the user's HEAD, complete in the project's object store and on no branch."""
    onto = tree.head(repo)
    commit = write_commit(repo, tree_hash, onto, message, when_ms)
    _publish(repo, commit, onto)
    return commit


def _publish(repo: Repository, commit: str, known: str | None) -> None:
    """Copy what `commit` needs beyond `known` from the private objects into the project's.

    Everything is sent, also what the project seems to have: an object there that nothing refers to might be about to
    be pruned, and writing it again renews it.
    """
    if repo.kind is Kind.PLAIN:
        return
    wanted = f"{commit}\n" + (f"^{known}\n" if known else "")
    packed = repo.git("pack-objects", "-q", "--revs", "--stdout", "--window=0", stdin=wanted.encode()).stdout
    many = int.from_bytes(packed[8:12], "big") > _UNPACK_LIMIT
    store = ("index-pack", "--stdin", "--fix-thin") if many else ("unpack-objects", "-q")
    repo.git(*store, stdin=packed, into_project=True)


def _advance(repo: Repository, goal_id: GoalId, ref: str, commit: str, old: str | None) -> None:
    """Move the branch from what was seen to the new commit, in one step or not at all."""
    moved = refs.set_ref(repo, ref, commit, old or "0" * len(commit), "loopx: checkpoint")
    if moved.status == 0:
        return
    now = _resolve(repo, ref)
    if now == commit:
        return
    if now != old:
        raise _moved(goal_id, old, now)
    if now is None and _resolve(repo, "refs/heads/loopx") is not None:
        raise ConflictError(
            "branch_name_blocked",
            "a branch named 'loopx' is in the way of 'loopx/...'",
            hint="Rename it: git branch -m loopx NAME",
        )
    raise git.failure(("update-ref", ref), moved.status, moved.stderr)


def _refuse_foreign(
    repo: Repository, goal_id: GoalId, ref: str, current: str | None, newest: Checkpoint | None
) -> None:
    if ref in _checked_out(repo):
        raise ConflictError(
            "branch_checked_out",
            f"the branch loopx/{goal_id} is checked out in a work tree",
            hint="Check out another branch there; the checkpoints would otherwise move under your feet.",
        )
    if current is not None and newest is None:
        raise ConflictError(
            "branch_not_ours",
            f"the tip of the branch loopx/{goal_id} was not made by LoopX",
            hint=f"Keep it under another name: git branch -m loopx/{goal_id} NAME",
        )


def _checked_out(repo: Repository) -> set[str]:
    listed = repo.git("worktree", "list", "--porcelain", into_project=True).stdout
    return {line[7:].decode("utf-8", "replace") for line in listed.split(b"\n") if line.startswith(b"branch ")}


def _moved(goal_id: GoalId, expected: str | None, found: str | None) -> ConflictError:
    return ConflictError(
        "branch_moved",
        f"the branch loopx/{goal_id} is not where this turn left it",
        hint="Someone else committed to it; read it back before going on.",
        data={"expected": expected, "found": found},
    )


def _same_effect(done: Checkpoint, tree_hash: str) -> str:
    if done.tree_hash != tree_hash:
        raise ConflictError(
            "effect_reused", f"{done.effect_ref} is already committed with another tree", data={"commit": done.sha}
        )
    return done.sha


def _walk(repo: Repository, start: str | None) -> Iterator[Checkpoint]:
    """LoopX's commits from a tip along first parents, read in batches, up to the first foreign one."""
    while start is not None:
        records = repo.git(
            "log", "-z", "--first-parent", f"-n{_BATCH}", f"--format={_LOG_FORMAT}%x00", start, "--"
        ).stdout.split(b"\0")
        start = None
        for fields in zip(*(records[offset::7] for offset in range(6)), strict=False):
            found = _parse(fields)
            if found is None:
                return
            yield found
            start = found.parent


def _parse(fields: tuple[bytes, ...]) -> Checkpoint | None:
    sha, parents, tree_hash, email, seconds, body = (field.decode("utf-8", "replace") for field in fields)
    trailers = _trailers(body)
    if email != git.IDENTITY_EMAIL or TURN_TRAILER not in trailers or EFFECT_TRAILER not in trailers:
        return None
    return Checkpoint(
        sha=sha,
        parent=parents.split(" ")[0] or None,
        tree_hash=tree_hash,
        turn_key=trailers[TURN_TRAILER],
        effect_ref=trailers[EFFECT_TRAILER],
        subject=body.split("\n", 1)[0],
        when_ms=int(seconds) * 1000,
    )


def _trailers(body: str) -> dict[str, str]:
    last = body.rstrip("\n").rpartition("\n\n")[2]
    return {key: value for key, colon, value in (line.partition(": ") for line in last.split("\n")) if colon}


def _read_base(repo: Repository, goal_id: GoalId) -> Base | None:
    commit = _resolve(repo, _base_ref(repo, goal_id))
    if commit is None:
        return None
    facts = repo.git("log", "-1", "--format=%T %P", commit, "--").line.split(" ")
    return _base_of(repo, goal_id, None, commit, facts[1] or None if len(facts) > 1 else None, facts[0])


def _base_of(
    repo: Repository, goal_id: GoalId, branch: str | None, commit: str, head: str | None, tree_hash: str
) -> Base:
    return Base(
        goal_id=goal_id,
        tree_hash=tree_hash,
        commit=commit,
        head=head,
        branch=branch,
        kind=repo.kind,
        dirty=head is not None and tree_of(repo, head) != tree_hash,
    )


def _base_ref(repo: Repository, goal_id: GoalId) -> str:
    return _checked_ref(f"refs/loopx/base/{goal_id}")


@functools.cache
def _is_ref_name(ref: str) -> bool:
    return git.run(("check-ref-format", ref), cwd="/", expect=(0, 1)).status == 0


def _checked_ref(ref: str) -> str:
    if not _is_ref_name(ref):
        raise UsageError(
            "bad_goal_name", f"{ref!r} cannot be a git branch", hint="Use letters, digits, '-' and '_' in goal names."
        )
    return ref


def _resolve(repo: Repository, ref: str) -> str | None:
    found = repo.git("rev-parse", "-q", "--verify", f"{ref}^{{commit}}", expect=(0, 1, 128), into_project=True)
    return found.line if found.status == 0 else None


def _refuse_control_letters(value: str) -> None:
    if not value or _CONTROL.search(value) or value != value.strip():
        raise UsageError("bad_trailer", f"{value!r} cannot be written into a commit message")
