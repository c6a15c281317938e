"""Charts as inline SVG for the page and the report: no script, no image file, no colour outside of the style sheet.

Pure functions from numbers to markup. Geometry is in attributes and looks are in classes, since the page's policy
allows no inline style. Each chart says in words what it shows; the numbers stand in a table beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

from loopx.presentation.i18n import translate
from loopx.presentation.renderers import page_words, words
from loopx.runtime.turn_views import TurnLine
from loopx.runtime.views import Series

WIDTH, HEIGHT = 380, 132
LEFT, RIGHT, TOP, BOTTOM = 42, 10, 12, 20
MOST_LINES = 4


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a bar chart. `hollow`: it did not count."""

    label: str
    amount: int
    hollow: bool
    title: str


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (value / top if top else 0) * (HEIGHT - TOP - BOTTOM)


def _open(label: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" '
        'preserveAspectRatio="xMidYMid meet">'
    )


def _nice(value: float) -> float:
    """The next round number."""
    if value <= 0:
        return 1
    size = 1.0
    while size * 10 < value:
        size *= 10
    return next((size * step for step in (1, 1.5, 2, 3, 4, 5, 7.5, 10) if size * step >= value), size * 10)


def _grid(top: float, unit: str) -> list[str]:
    found: list[str] = []
    for part in (0.0, 0.5, 1.0):
        y = _y(top * part, top)
        shown = page_words.amount(unit, round(top * part)) if part else "0"
        found.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{escape(shown)}</text>')
    return found


def total_chart(series: Series, now_ms: int, exhausts_at_ms: int | None = None) -> str:
    """What was used so far, as it grew, with the budget's line and the instant at which the pace reaches it."""
    name = translate(page_words.UNITS.get(series.unit, series.unit))
    if not series.points:
        return ""
    start = series.points[0].at_ms
    end = max(now_ms, start + 1, min(exhausts_at_ms or 0, now_ms + (now_ms - start)))
    highest = max(series.total, series.limit or 0)
    top = _nice(highest * 1.02)

    def x(at_ms: int) -> float:
        return LEFT + (at_ms - start) / (end - start) * (WIDTH - LEFT - RIGHT)

    first = series.points[0]
    path = [f"M{x(start):.1f},{_y(first.total - first.amount, top):.1f}"]
    for point in series.points:
        path.append(f"H{x(point.at_ms):.1f}V{_y(point.total, top):.1f}")
    path.append(f"H{x(now_ms):.1f}")
    line = "".join(path)
    shown = page_words.amount(series.unit, series.total)
    label = f"{name}: {shown}"
    if series.limit is not None:
        label += f" {translate('of')} {page_words.amount(series.unit, series.limit)}"
    parts = [_open(label), *_grid(top, series.unit)]
    floor = _y(0, top)
    parts.append(f'<path class="area" d="{line}V{floor:.1f}H{x(start):.1f}Z"/><path class="line" d="{line}"/>')
    parts.append(f'<circle class="dot" cx="{x(now_ms):.1f}" cy="{_y(series.total, top):.1f}" r="3"/>')
    if series.limit is not None:
        y = _y(series.limit, top)
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        budget = f"{translate('budget')} {page_words.amount(series.unit, series.limit)}"
        parts.append(f'<text class="limit-word" x="{WIDTH - RIGHT}" y="{y + 12:.1f}" text-anchor="end">{budget}</text>')
        if exhausts_at_ms is not None and now_ms < exhausts_at_ms <= end:
            ahead = f"M{x(now_ms):.1f},{_y(series.total, top):.1f}L{x(exhausts_at_ms):.1f},{y:.1f}"
            parts.append(f'<path class="ahead" d="{ahead}"/>')
    parts += [_edge(words.clock(start, now_ms), first=True), _edge(words.clock(end, now_ms), first=False), "</svg>"]
    return "".join(parts)


def _edge(text: str, *, first: bool) -> str:
    x, anchor = (LEFT, "start") if first else (WIDTH - RIGHT, "end")
    return f'<text class="tick" x="{x}" y="{HEIGHT - 6}" text-anchor="{anchor}">{escape(text)}</text>'


def turn_marks(turns: Sequence[TurnLine]) -> tuple[Mark, ...]:
    """Tokens of each turn, oldest first; a turn without a slot is hollow. Turns with unknown usage are left out."""
    return tuple(
        Mark(
            label=str(turn.number),
            amount=turn.tokens,
            hollow=turn.slots == 0,
            title=f"{translate('turn')} {turn.number}: {words.tokens(turn.tokens)}",
        )
        for turn in reversed(turns)
        if turn.tokens is not None
    )


def bar_chart(marks: Sequence[Mark], unit: str, label: str) -> str:
    """One column for each turn."""
    if not marks:
        return ""
    top = _nice(max(mark.amount for mark in marks) * 1.02)
    room = (WIDTH - LEFT - RIGHT) / max(len(marks), 6)
    width = max(3.0, min(34.0, room * 0.62))
    parts = [_open(label), *_grid(top, unit)]
    every = max(1, len(marks) // 10)
    for index, mark in enumerate(marks):
        x = LEFT + room * index + (room - width) / 2
        y = _y(mark.amount, top)
        high = max(1.0, HEIGHT - BOTTOM - y)
        parts.append(
            f'<rect class="{"hollow" if mark.hollow else "col"}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{high:.1f}" rx="2"><title>{escape(mark.title)}</title></rect>'
        )
        if index % every == 0:
            middle = x + width / 2
            name = escape(mark.label)
            parts.append(f'<text class="tick" x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{name}</text>')
    parts.append("</svg>")
    return "".join(parts)


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """How many parts of one check failed after each turn; (turn number, failing)."""

    name: str
    points: tuple[tuple[int, int], ...]


def failing_lines(turns: Sequence[TurnLine]) -> tuple[Failing, ...]:
    """The checks whose parts were counted, the most failing first."""
    found: dict[str, list[tuple[int, int]]] = {}
    for turn in reversed(turns):
        for check in turn.checks:
            if check.failed is not None:
                points = found.setdefault(check.name, [])
                if not points and check.before_failed is not None:
                    points.append((turn.number - 1, check.before_failed))
                points.append((turn.number, check.failed))
    lines = [Failing(name=name, points=tuple(points)) for name, points in found.items()]
    return tuple(sorted(lines, key=lambda line: -max(failed for _, failed in line.points)))[:MOST_LINES]


def failing_chart(lines: Sequence[Failing]) -> str:
    """Failing parts over turns, one line a check."""
    numbers = [number for line in lines for number, _ in line.points]
    if len(set(numbers)) < 2:
        return ""
    low, high = min(numbers), max(numbers)
    top = _nice(max(failed for line in lines for _, failed in line.points))
    room = WIDTH - LEFT - RIGHT

    def x(number: int) -> float:
        return LEFT + (number - low) / (high - low) * room

    parts = [_open(translate("failing parts of the checks, by turn")), *_grid(top, "turns")]
    for index, line in enumerate(lines):
        path = "L".join(f"{x(number):.1f},{_y(failed, top):.1f}" for number, failed in line.points)
        parts.append(f'<path class="series s{index}" d="M{path}"/>')
        for number, failed in line.points:
            title = f"{translate('turn')} {number}: {failed}"
            parts.append(
                f'<circle class="point s{index}" cx="{x(number):.1f}" cy="{_y(failed, top):.1f}" r="3">'
                f"<title>{escape(title)}</title></circle>"
            )
    every = max(1, (high - low + 1) // 10)
    for number in range(low, high + 1, every):
        name = str(number) if number else translate("start")
        parts.append(f'<text class="tick" x="{x(number):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{name}</text>')
    parts.append("</svg>")
    return "".join(parts)
