"""Todos as a graph: what depends on what, from left to right, as inline SVG. Pure; a list of the same stands beside it.

Columns are the depth of dependencies; what has no dependency among the shown todos stands in the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import msgspec

from loopx.control_plane.ids import TodoId
from loopx.control_plane.work_items.todo import Todo
from loopx.presentation import untrusted
from loopx.presentation.i18n import translate
from loopx.presentation.renderers import page_words, words

MOST = 40
NODE_W, NODE_H, GAP_X, GAP_Y, EDGE = 172, 40, 36, 12, 2
TITLE_CHARS = 21
MARKS: Mapping[str, str] = {
    "done": "✓",
    "claimed": "▶",
    "blocked": "✗",
    "deferred": "◷",
    "superseded": "–",
    "open": "○",
}


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A todo and the corner where its box begins."""

    todo: Todo
    x: int
    y: int


def depths(todos: Sequence[Todo]) -> dict[TodoId, int]:
    """How many steps of dependencies lead to each todo, among those given. A cycle would end at its start."""
    known = {todo.todo_id: todo for todo in todos}
    found: dict[TodoId, int] = {}

    def depth(todo_id: TodoId, path: frozenset[TodoId]) -> int:
        if todo_id in found:
            return found[todo_id]
        before = [one for one in known[todo_id].depends_on if one in known and one not in path]
        here = 1 + max((depth(one, path | {todo_id}) for one in before), default=-1)
        found[todo_id] = here
        return here

    for todo in todos:
        depth(todo.todo_id, frozenset())
    return found


def placed(todos: Sequence[Todo]) -> tuple[Placed, ...]:
    """Where each todo goes: a column by its depth, a row by its turn in the column."""
    level = depths(todos)
    rows: dict[int, int] = {}
    found: list[Placed] = []
    for todo in todos:
        column = level[todo.todo_id]
        row = rows.get(column, 0)
        rows[column] = row + 1
        found.append(Placed(todo=todo, x=EDGE + column * (NODE_W + GAP_X), y=EDGE + row * (NODE_H + GAP_Y)))
    return tuple(found)


def graph(todos: Sequence[Todo]) -> str:
    """The SVG; empty for fewer than two todos, where a graph shows nothing, or more than can be read in one."""
    if not 1 < len(todos) <= MOST:
        return ""
    nodes = placed(todos)
    width = max(node.x for node in nodes) + NODE_W + EDGE
    height = max(node.y for node in nodes) + NODE_H + EDGE
    label = f"{translate('todos as a graph')}: {words.count(len(todos), 'todo')}"
    parts = [
        f'<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">'
    ]
    at = {node.todo.todo_id: node for node in nodes}
    for node in nodes:
        for before in node.todo.depends_on:
            if before in at:
                parts.append(_edge(at[before], node))
    parts += [_node(node) for node in nodes]
    return "".join([*parts, "</svg>"])


def _edge(start: Placed, end: Placed) -> str:
    x1, y1 = start.x + NODE_W, start.y + NODE_H // 2
    x2, y2 = end.x, end.y + NODE_H // 2
    bend = (x2 - x1) // 2
    return f'<path class="edge" d="M{x1},{y1}C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}"/>'


def _node(node: Placed) -> str:
    todo = node.todo
    tone = page_words.tone(todo.status)
    title = untrusted.one_line(todo.title, TITLE_CHARS)
    state = words.word(words.TODO_STATUSES, todo.status)
    whole = escape(untrusted.one_line(todo.title, 200))
    return (
        f'<g class="node {tone} {todo.status}" transform="translate({node.x},{node.y})"><title>{whole}</title>'
        f'<rect width="{NODE_W}" height="{NODE_H}" rx="6"/>'
        f'<text class="name" x="12" y="17">{escape(title)}</text>'
        f'<text class="state" x="12" y="32">{MARKS.get(todo.status, "○")} {escape(state)}</text></g>'
    )
