"""What a turn did besides the work that is judged: to the user's repository, to the goal's branch, by links that leave.

LoopX itself moves none of these, and puts none of them back: a person may have moved them. It says what moved, and
refuses only what makes a tree say something else than its files do.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from loopx.contracts.findings import Finding, FindingCode
from loopx.workspace import identity, tree
from loopx.workspace.difference import FileChange
from loopx.workspace.identity import UserMove, WorkTreeStatus
from loopx.workspace.repository import Kind, Repository, writing_state

_CODES = {
    UserMove.REPOSITORY: FindingCode.USER_HEAD_MOVED,
    UserMove.HEAD: FindingCode.USER_HEAD_MOVED,
    UserMove.BRANCH: FindingCode.USER_BRANCH_MOVED,
    UserMove.INDEX: FindingCode.USER_INDEX_MOVED,
    UserMove.RULES: FindingCode.GIT_RULES_CHANGED,
    UserMove.FILTERS: FindingCode.GIT_RULES_CHANGED,
}


def remember(repository: Repository, turn_key: str) -> None:
    """Keep how the user's side of the repository looks as a turn begins; LoopX's own folder holds it."""
    place = _place(repository, turn_key)
    with writing_state(repository.state_dir):
        place.parent.mkdir(exist_ok=True)
        places = (repository.root, repository.git_dir, repository.common_dir)
        status = identity.look(*places) if repository.kind is Kind.GIT else identity.inspect(repository.root)
        place.write_bytes(msgspec.json.encode(status))


def forget(repository: Repository, turn_key: str) -> None:
    """The turn is over."""
    with contextlib.suppress(OSError):
        _place(repository, turn_key).unlink()


def user_moves(repository: Repository, turn_key: str) -> tuple[Finding, ...]:
    """What of the user's HEAD, branch, index and git rules is no longer as the turn found it."""
    try:
        before = msgspec.json.decode(_place(repository, turn_key).read_bytes(), type=WorkTreeStatus)
    except (OSError, msgspec.DecodeError):
        return ()  # begun by an older LoopX, or on another machine
    after = identity.inspect(repository.root)
    return tuple(
        Finding(
            code=_CODES[move],
            refused=move is UserMove.FILTERS,
            detail=f"{move} {_shown(before, move)} -> {_shown(after, move)}".strip(),
        )
        for move in identity.head_moved(before, after)
    )


def _shown(status: WorkTreeStatus, move: UserMove) -> str:
    match move:
        case UserMove.HEAD:
            return (status.head or "none")[:12]
        case UserMove.BRANCH:
            return status.branch or "detached"
        case _:
            return ""


def goal_branch(expected: str | None, tip: str | None) -> tuple[Finding, ...]:
    """Whether somebody else than LoopX moved the goal's branch since its last checkpoint."""
    if expected == tip:
        return ()
    detail = f"{(expected or 'none')[:12]} -> {(tip or 'none')[:12]}"
    return (Finding(code=FindingCode.GOAL_BRANCH_MOVED, refused=False, detail=detail),)


def links_out(repository: Repository, now_tree: str, changes: Iterable[FileChange]) -> tuple[str, ...]:
    """New links of the tree that lead out of it: what lies behind them is no part of the work that is judged."""
    return tuple(_links_out(repository, now_tree, changes))


def _links_out(repository: Repository, now_tree: str, changes: Iterable[FileChange]) -> Iterator[str]:
    for change in changes:
        if change.new_mode == tree.SYMLINK_MODE and change.new_blob != change.old_blob:
            target = os.fsdecode(tree.read_file(repository, now_tree, change.path))
            inside = posixpath.normpath(posixpath.join(posixpath.dirname(change.path), target))
            if target.startswith("/") or inside == ".." or inside.startswith("../"):
                yield change.path


def link_findings(paths: Iterable[str]) -> tuple[Finding, ...]:
    return tuple(Finding(code=FindingCode.LINK_OUT_OF_TREE, refused=False, path=path) for path in paths)


def _place(repository: Repository, turn_key: str) -> Path:
    return repository.state_dir / "trees" / f"{turn_key}.user"
