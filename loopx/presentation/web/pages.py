"""Renders pages: templates with everything escaped, words from one place, and strangers' text made harmless.

It reads nothing by itself; handlers hand it typed views. The same templates serve the report.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from markupsafe import Markup

from loopx.contracts.model import PartCounts
from loopx.hosts import redact
from loopx.presentation import charts, i18n, todo_graph, untrusted
from loopx.presentation.renderers import page_words, words
from loopx.presentation.renderers.run_text import engine_label
from loopx.runtime.agent_stream import StreamLine
from loopx.runtime.progress import CheckSummary
from loopx.runtime.turn_views import CheckLine, TurnLine
from loopx.store.events import Event

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = os.path.dirname(__file__)
PHASES = 7
DIFF_LINES = 4000


class DiffLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a patch: `file`, `hunk`, `add`, `del` or `same`."""

    kind: str
    text: str


@functools.cache
def environment() -> Environment:
    """The templates, with every value escaped and no undefined name tolerated."""
    from jinja2 import Environment as Templates
    from jinja2 import FileSystemLoader, StrictUndefined

    made = Templates(
        loader=FileSystemLoader(os.path.join(HERE, "templates")),
        autoescape=True,
        undefined=StrictUndefined,
        # Whatever reaches a page passes here, except markup of our own: what looks like a credential does not.
        finalize=lambda value: redact.redact(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(_FILTERS)
    made.globals.update(_GLOBALS)
    return made


def render(name: str, values: Mapping[str, object]) -> str:
    """One page."""
    return environment().get_template(name).render(lang=i18n.language(), **values)


def static(name: str) -> str:
    """A file that is served as it is."""
    with open(os.path.join(HERE, "static", name), encoding="utf-8") as file:
        return file.read()


def check_numbers(check: CheckSummary) -> str:
    """`1 of 41 failing`, `41 of 41`, or why it is not green."""
    if check.total is None or check.failed is None:
        return words.word(words.CHECK_REASONS, check.reason) if check.reason else ""
    if check.verdict == "green":
        return f"{check.total - check.failed} {i18n.translate('of')} {check.total}"
    return i18n.translate("{failed} of {total} failing").format(failed=check.failed, total=check.total)


def part_numbers(parts: PartCounts) -> str:
    """`1 of 41 failing`, or `41 of 41`."""
    if parts.failed:
        return i18n.translate("{failed} of {total} failing").format(failed=parts.failed, total=parts.total)
    return f"{parts.total} {i18n.translate('of')} {parts.total}"


def check_output(line: CheckLine) -> str:
    """The check's own output, its dropped middle named."""
    output = line.result.output
    gap = f"\n… {words.short_number(output.omitted_bytes)} bytes …\n" if output.omitted_bytes else ""
    return untrusted.clean(output.head + gap + output.tail)


def turn_reason(turn: TurnLine) -> str:
    """Why the turn has its result, in words."""
    if turn.state == "blocked":
        return i18n.translate("its journal contradicts itself; a person repairs it")
    reason = words.word(words.REASONS, turn.reason) if turn.reason else ""
    failure = words.word(words.ENDS, turn.failure) if turn.failure else ""
    return words.joined([reason, failure])


def turn_tone(turn: TurnLine) -> str:
    """How a turn is coloured."""
    if turn.result_kind is None or turn.state == "open":
        return "busy"
    return page_words.tone(turn.result_kind)


def stream_text(line: StreamLine) -> str:
    """What an agent's step says, on as many lines as it has."""
    if line.kind == "file_change":
        return untrusted.one_line(", ".join(line.paths), 600)
    text = untrusted.head(line.text, 12)
    tool = untrusted.one_line(line.tool, 60) if line.tool and line.tool not in page_words.SHELLS else ""
    return f"{tool}: {text}" if tool and text and tool not in text else text or tool


def diff_lines(patch: str) -> tuple[DiffLine, ...]:
    """A patch by lines, at most so many; git's own header lines are left out."""
    found: list[DiffLine] = []
    inside = False
    for line in patch.split("\n")[:DIFF_LINES]:
        shown = untrusted.clean(line)[:1000]
        if line.startswith("diff --git "):
            inside = False
            name = shown.removeprefix("diff --git ").partition(" b/")[2] or shown
            found.append(DiffLine(kind="file", text=name))
        elif line.startswith("@@"):
            inside = True
            found.append(DiffLine(kind="hunk", text=shown))
        elif inside and line[:1] in ("+", "-", " "):
            kind = {"+": "add", "-": "del", " ": "same"}[line[:1]]
            found.append(DiffLine(kind=kind, text=shown))
        elif line.startswith(("new file", "deleted file", "rename ", "Binary ", "old mode", "new mode")):
            found.append(DiffLine(kind="hunk", text=shown))
    return tuple(found)


def pretty(raw: msgspec.Raw) -> str:
    """A stored body as a person reads it."""
    return untrusted.clean(msgspec.json.format(bytes(raw), indent=2).decode()[:20_000])


_TICKING = re.compile(r'(data-(?:ago|until|for)="\d+">)[^<]*<')


def mark(part: Markup | str) -> str:
    """A digest of a part of a page that changes when the part does; distances in time do not count."""
    plain = _TICKING.sub(r"\1<", str(part))
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def evidence_body(raw: msgspec.Raw) -> str:
    """What a piece of evidence holds: its text where that is all, else its fields."""
    body = msgspec.json.decode(raw)
    if isinstance(body, dict):
        if set(body) == {"text"}:
            return untrusted.clean(redact.redact(str(body["text"])))
        output = body.get("output")
        if isinstance(output, dict):
            text = f"{output.get('head', '')}{output.get('tail', '')}"
            return untrusted.clean(redact.redact(text)) or i18n.translate("it printed nothing")
    return redact.redact(pretty(raw))


def event_body(raw: msgspec.Raw) -> str:
    """The telling fields of an event, on one line."""
    body = msgspec.json.decode(raw)
    if not isinstance(body, dict):
        return ""
    given = {key: str(body[key]) for key in _TOLD if isinstance(body.get(key), str) and body[key]}
    # A code that its table does not know says nothing to people.
    parts = [words_of(_TOLD[key], code) for key, code in given.items() if not _TOLD[key] or code in _TOLD[key]]
    return untrusted.one_line(redact.redact(words.joined(parts)), 160)


def told_events(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events that say something by themselves."""
    return tuple(one for one in events if not one.kind.startswith(page_words.HIDDEN_EVENTS))


def shown_lines(lines: Sequence[StreamLine]) -> tuple[StreamLine, ...]:
    """The steps of an agent that are worth a line."""
    return tuple(one for one in lines if page_words.stream_shown(one.kind, one.tool, denied=one.denied))


def event_words(kind: str) -> str:
    """An event that no table names: a committed phase, or one of a newer version."""
    if kind.startswith("phase_"):
        name = words_of(page_words.PHASE_NAMES, kind.removeprefix("phase_"))
        return i18n.translate("phase committed: {phase}").format(phase=name)
    return kind.replace("_", " ")


def iso(at_ms: int) -> str:
    """An instant as machines read it, in UTC."""
    import datetime

    return datetime.datetime.fromtimestamp(at_ms / 1000, tz=datetime.UTC).isoformat(timespec="seconds")


def short(identity: str | None, width: int = 9) -> str:
    """The part of a hash that people look at."""
    return (identity or "")[:width]


def _svg(draw: str) -> Markup:
    """Markup that our own functions made, and in which they escaped every text."""
    return Markup(draw)


def words_of(table: Mapping[str, str], code: object) -> str:
    """A code's words, in the reader's language."""
    return i18n.translate(table.get(str(code), str(code))) if code is not None else ""


def names(items: Sequence[str], most: int = 4) -> str:
    """A few names, and how many more."""
    shown = ", ".join(untrusted.one_line(item, 80) for item in items[:most])
    return f"{shown} +{len(items) - most}" if len(items) > most else shown


_TOLD: Mapping[str, Mapping[str, str]] = {
    "kind": page_words.RESULT_KINDS,
    "reason": words.REASONS,
    "end": words.ENDS,
    "purpose": page_words.PURPOSES,
    "title": {},
    "question": {},
    "answer": {},
    "engine": {},
    "what": {},
    "by": {},
}
"""Fields of events that say something to people, and the words of their codes."""

_FILTERS = {
    "mark": mark,
    "evidence_body": evidence_body,
    "event_body": event_body,
    "clean": untrusted.clean,
    "line": untrusted.one_line,
    "duration": words.duration,
    "clock": words.clock,
    "ago": words.ago,
    "until": words.until,
    "span": words.span,
    "tokens": words.tokens,
    "money": words.money,
    "short_number": words.short_number,
    "command": words.command,
    "iso": iso,
    "short": short,
    "names": names,
    "pretty": pretty,
    "tone": page_words.tone,
    "engine": engine_label,
}
_GLOBALS: dict[str, object] = {
    "_": i18n.translate,
    "w": words,
    "pw": page_words,
    "word": words_of,
    "phases": PHASES,
    "check_numbers": check_numbers,
    "check_output": check_output,
    "part_numbers": part_numbers,
    "turn_reason": turn_reason,
    "turn_tone": turn_tone,
    "stream_text": stream_text,
    "shown_lines": shown_lines,
    "told_events": told_events,
    "event_words": event_words,
    "diff_lines": diff_lines,
    "total_chart": lambda *args: _svg(charts.total_chart(*args)),
    "bar_chart": lambda *args: _svg(charts.bar_chart(*args)),
    "turn_marks": charts.turn_marks,
    "failing_lines": charts.failing_lines,
    "failing_chart": lambda *args: _svg(charts.failing_chart(*args)),
    "todo_graph": lambda *args: _svg(todo_graph.graph(*args)),
}
