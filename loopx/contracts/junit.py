"""Reading JUnit XML as test runners write it, in one pass and in bounded memory.

Documents with a DOCTYPE or an entity of their own are refused, so no file can expand or fetch anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.parsers import expat

from loopx.contracts.model import PartCounts
from loopx.contracts.signature import error_class_of
from loopx.contracts.tally import Outcome, Tally

_TEXT_KEPT = 4_096
_PROBLEMS = {"failure": Outcome.FAILED, "error": Outcome.FAILED, "skipped": Outcome.SKIPPED}


class _RefusedDocumentError(Exception):
    pass


class _Reader:
    def __init__(self, source: str) -> None:
        self.tally = Tally(source)
        self.is_junit = False
        self._case: str | None = None
        self._outcome = Outcome.PASSED
        self._class: str | None = None
        self._reading = False
        self._text = ""
        self._depth = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if self._depth == 0:
            self.is_junit = tag in {"testsuites", "testsuite"}
        self._depth += 1
        if tag == "testcase":
            self._case = _test_id(attributes)
            self._outcome, self._class = Outcome.PASSED, None
            if attributes.get("status") in {"notrun", "disabled"}:
                self._outcome = Outcome.SKIPPED
        elif self._case is not None and tag in _PROBLEMS:
            self._problem(tag, attributes)

    def _problem(self, tag: str, attributes: dict[str, str]) -> None:
        outcome = _PROBLEMS[tag]
        kind, message = attributes.get("type", ""), attributes.get("message", "")
        if tag == "skipped" and ("xfail" in kind or "todo" in kind.lower()):
            outcome = Outcome.EXPECTED_FAILURE
        elif tag == "error" and message.startswith("collection failure"):
            outcome = Outcome.COLLECTION_ERROR
        self._outcome = max(self._outcome, outcome)
        if outcome >= Outcome.FAILED:
            self._class = self._class or error_class_of(kind.rpartition(".")[2]) or error_class_of(message)
            self._reading, self._text = True, ""

    def text(self, data: str) -> None:
        if self._reading:
            self._text = (self._text + data)[-_TEXT_KEPT:]

    def end(self, tag: str) -> None:
        self._depth -= 1
        if self._reading and tag in _PROBLEMS:
            self._reading = False
            self._class = self._class or error_class_of(self._text)
        elif tag == "testcase" and self._case is not None:
            self.tally.add(self._case, self._outcome, self._class)
            self._case = None


def _test_id(attributes: dict[str, str]) -> str:
    place = attributes.get("classname") or attributes.get("file") or ""
    name = attributes.get("name", "")
    return f"{place}::{name}" if place else name


def _refuse(*_: object) -> None:
    raise _RefusedDocumentError


def read_junit(chunks: Iterable[bytes], source: str = "junit") -> PartCounts | None:
    """The parts that a JUnit XML document reports; None when it is none, is cut off, or declares a document type."""
    reader = _Reader(source)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = _refuse  # entities can only be declared there
    try:
        for chunk in chunks:
            parser.Parse(chunk, False)
        parser.Parse(b"", True)
    except (expat.ExpatError, _RefusedDocumentError, ValueError):
        return None
    return reader.tally.counts() if reader.is_junit else None
