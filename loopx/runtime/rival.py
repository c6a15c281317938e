"""Reading the state of the other program of this name: goals from its registry, todos from its Markdown workbench.

Only what is plainly there is taken, and everything that is left out is named: what it calls done is no proof here, its
probes and its quota history have no counterpart. Nothing of its files is changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import msgspec

from loopx.control_plane.errors import UsageError

REGISTRY = "registry.json"
MAX_BYTES = 16 << 20
_ITEM = re.compile(r"^\s{0,3}[-*] \[(?P<mark>[ xX-])\]\s+(?:\[P(?P<priority>\d)\]\s+)?(?P<text>.*)$")
_META = re.compile(r"<!--\s*loopx:todo\s+(?P<fields>.*?)\s*-->")
_FIELD = re.compile(r"(\w+)=(\S+)")
_HEADING = re.compile(r"^#{1,6}\s+(?P<title>.*?)\s*$")


class RivalTodo(msgspec.Struct, frozen=True, kw_only=True):
    """One todo as its workbench has it. `owner`: `agent` or `user`."""

    rival_id: str
    title: str
    status: str
    task_class: str
    owner: str
    priority: int
    after: str | None = None
    """The rival's id of the todo that it waits for."""


class RivalGoal(msgspec.Struct, frozen=True, kw_only=True):
    """One goal of its registry. `notes` are codes for what could not be read."""

    rival_id: str
    status: str
    objective: str
    compute: float | None
    window_hours: float | None
    write_scope: tuple[str, ...]
    todos: tuple[RivalTodo, ...]
    notes: tuple[str, ...]


class RivalState(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found, and where."""

    registry: str
    goals: tuple[RivalGoal, ...]


class _Quota(msgspec.Struct, frozen=True):
    compute: float | None = None
    window_hours: float | None = None


class _Coordination(msgspec.Struct, frozen=True):
    write_scope: tuple[str, ...] = ()


class _Goal(msgspec.Struct, frozen=True):
    id: str
    status: str = "active"
    repo: str = ""
    state_file: str = ""
    quota: _Quota = _Quota()
    coordination: _Coordination = _Coordination()


class _Registry(msgspec.Struct, frozen=True):
    goals: tuple[_Goal, ...]


def registry_of(path: str) -> str | None:
    """The registry that a path means: the file itself, or that of a `.loopx` folder or of the folder above it."""
    places = [path] if os.path.isfile(path) else [os.path.join(path, REGISTRY), os.path.join(path, ".loopx", REGISTRY)]
    return next((place for place in places if os.path.isfile(place) and _looks_like_registry(place)), None)


def _looks_like_registry(path: str) -> bool:
    try:
        _read_registry(path)
    except UsageError:
        return False
    return True


def read(registry: str) -> RivalState:
    """Read its registry and the workbench of each goal. Raises UsageError (`rival_unreadable`)."""
    return RivalState(registry=registry, goals=tuple(_goal(one, registry) for one in _read_registry(registry).goals))


def _read_registry(path: str) -> _Registry:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=_Registry, strict=False)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            "rival_unreadable", f"{path} is no registry that can be read: {error}", hint="name its registry.json"
        ) from error


def _goal(goal: _Goal, registry: str) -> RivalGoal:
    text, note = _workbench(goal, registry)
    return RivalGoal(
        rival_id=goal.id,
        status=goal.status,
        objective=_objective(text) or goal.id,
        compute=goal.quota.compute,
        window_hours=goal.quota.window_hours,
        write_scope=goal.coordination.write_scope,
        todos=tuple(_todos(text)),
        notes=(note,) if note else (),
    )


def _workbench(goal: _Goal, registry: str) -> tuple[str, str]:
    """The Markdown of a goal, or nothing and why."""
    if not goal.state_file:
        return "", "workbench_unnamed"
    base = goal.repo if os.path.isdir(goal.repo) else os.path.dirname(os.path.dirname(os.path.abspath(registry)))
    try:
        with open(os.path.join(base, goal.state_file), "rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace"), ""
    except OSError:
        return "", "workbench_missing"


def _objective(text: str) -> str:
    """What the goal is about: the front matter's word, else the objective's section, else the title."""
    front, body = _front_matter(text)
    if front.get("objective"):
        return front["objective"]
    title = ""
    section = ""
    for line in body.splitlines():
        heading = _HEADING.match(line)
        if heading is not None:
            section = heading["title"].lower()
            title = title or heading["title"]
        elif section.startswith("objective") and line.strip():
            return line.strip()
    return "" if title.lower() == "active goal state" else title


def _front_matter(text: str) -> tuple[dict[str, str], str]:
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return {}, text
    end = next((number for number, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
    if end is None:
        return {}, text
    pairs = (line.partition(":") for line in lines[1:end] if ":" in line)
    front = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
    return front, "\n".join(lines[end + 1 :])


def _todos(text: str) -> Iterator[RivalTodo]:
    """The items of the todo sections; each is its line, what follows it indented, and its metadata."""
    owner: str | None = None
    item: re.Match[str] | None = None
    rest: list[str] = []
    for line in (*_front_matter(text)[1].splitlines(), "# end"):
        heading, found = _HEADING.match(line), _ITEM.match(line)
        if heading is None and found is None:
            rest.append(line)
            continue
        if item is not None and owner is not None:
            yield _todo(item, rest, owner)
        item, rest = found, []
        if heading is not None:
            owner = _owner(heading["title"])


def _owner(title: str) -> str | None:
    word = title.lower()
    if word.startswith(("agent todo", "todo")):
        return "agent"
    return "user" if word.startswith("user todo") else None


def _todo(item: re.Match[str], rest: list[str], owner: str) -> RivalTodo:
    whole = "\n".join([item["text"], *rest])
    meta = _META.search(whole)
    fields = dict(_FIELD.findall(meta["fields"])) if meta is not None else {}
    title = " ".join(_META.sub("", whole).split())
    resume = fields.get("resume_when", "")
    return RivalTodo(
        rival_id=fields.get("todo_id", ""),
        title=title[:2000],
        status=fields.get("status") or {" ": "open", "-": "deferred"}.get(item["mark"], "done"),
        task_class=fields.get("task_class", "advancement_task"),
        owner=owner,
        priority=_priority(item["priority"] or fields.get("priority", "")),
        after=resume.removeprefix("todo_done:") if resume.startswith("todo_done:") else None,
    )


def _priority(word: str) -> int:
    """Higher goes first here; P0 is the most urgent there."""
    digits = word.upper().removeprefix("P")
    return max(0, 9 - int(digits)) * 10 if digits.isdigit() else 0
