"""Whether a goal's work tree can be worked in, as far as a decision may look: it is there, and no operation is begun.

A few `stat` calls and no process, because a should-run decision asks for it. Everything finer is looked at by the turn.
"""

from __future__ import annotations

import os

import msgspec

from loopx.control_plane.goal import CLOSED_GOAL_STATES, TreeMode
from loopx.control_plane.quota.facts import GoalFacts, Health
from loopx.store import goals
from loopx.store.connection import Tx

BEGUN = (
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("BISECT_LOG", "bisect"),
)
"""The same as `workspace/identity.py`, which is too much to load for a decision; a test holds them together."""


def trouble(root: str) -> str | None:
    """What keeps the tree at `root` from being used: `missing`, or the operation that was begun; None for nothing."""
    if not os.path.isdir(root):
        return "missing"
    git_dir = _git_dir(os.path.realpath(root))
    if git_dir is None:
        return None
    return next((word for name, word in BEGUN if os.path.exists(os.path.join(git_dir, name))), None)


def heed_tree(facts: GoalFacts, tx: Tx) -> GoalFacts:
    """The facts, with the health of the work tree where that is not well. A worse health stays as it is."""
    if facts.health is not Health.OK or facts.state in CLOSED_GOAL_STATES:
        return facts
    row = goals.row_of(tx, facts.goal_id)
    found = trouble(row["root"])
    if found is None:
        return facts
    if found != "missing":
        mode = goals.definition_of(tx, facts.goal_id, facts.revision).tree_mode
        if mode is TreeMode.WORKTREE:
            return facts
    return msgspec.structs.replace(facts, health=Health.TREE_UNUSABLE, health_detail=f"{found} in {row['root']}"[:300])


def _git_dir(folder: str) -> str | None:
    while True:
        place = os.path.join(folder, ".git")
        if os.path.isdir(place):
            return place
        if os.path.isfile(place):
            return _linked(place, folder)
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _linked(place: str, folder: str) -> str | None:
    """The folder that a worktree's `.git` file names."""
    try:
        with open(place, encoding="utf-8") as file:
            word, _, path = file.read(4096).partition(":")
    except (OSError, UnicodeDecodeError):
        return None
    return os.path.join(folder, path.strip()) if word == "gitdir" else None
