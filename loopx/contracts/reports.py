"""Reading the JSON that test runners write: jest's and vitest's report file, and the stream of `go test -json`.

Pure and tolerant: what is not such a report is no report, never an error.
"""

from __future__ import annotations

import msgspec

from loopx.contracts.model import Machine, PartCounts
from loopx.contracts.signature import error_class_of
from loopx.contracts.summaries import Found, weigh_report
from loopx.contracts.tally import Outcome, Tally


class _Assertion(msgspec.Struct):
    fullName: str = ""  # the report's own field name
    status: str = ""
    failureMessages: list[str | None] | None = None


class _Suite(msgspec.Struct):
    name: str = ""
    status: str = ""
    message: str | None = ""
    assertionResults: list[_Assertion] | None = None


class _Report(msgspec.Struct):
    numTotalTests: int
    testResults: list[_Suite]


_STATUS = {
    "passed": Outcome.PASSED,
    "failed": Outcome.FAILED,
    "todo": Outcome.EXPECTED_FAILURE,
    "pending": Outcome.SKIPPED,
    "skipped": Outcome.SKIPPED,
    "disabled": Outcome.SKIPPED,
}


def read_jest(document: bytes, root: str, source: str) -> PartCounts | None:
    """The parts of a jest or vitest JSON report; ids are relative to `root`. None when it is no such report."""
    try:
        report = msgspec.json.decode(document, type=_Report)
    except msgspec.MsgspecError:
        return None
    tally = Tally(source)
    for suite in report.testResults:
        place = suite.name.removeprefix(root.rstrip("/") + "/")
        for test in suite.assertionResults or []:
            outcome = _STATUS.get(test.status, Outcome.SKIPPED)
            said = (test.failureMessages or [None])[0]
            tally.add(f"{place}::{test.fullName}", outcome, error_class_of(said or ""))
        if suite.status == "failed" and not suite.assertionResults:
            tally.add(place, Outcome.COLLECTION_ERROR, error_class_of(suite.message or ""))
    return tally.counts()


class _GoEvent(msgspec.Struct):
    Action: str
    Package: str = ""
    Test: str = ""
    Output: str = ""


_GO = {"pass": Outcome.PASSED, "fail": Outcome.FAILED, "skip": Outcome.SKIPPED}


class GoScanner:
    """The stream of `go test -json`; `text_of` gives back what people would have seen."""

    def __init__(self) -> None:
        self._tally = Tally("go")
        self._decoder = msgspec.json.Decoder(_GoEvent)
        self._events = 0
        self._failed_in: set[str] = set()
        self._last_error: str | None = None

    def line(self, text: str) -> None:
        """Read one line."""
        event = self._event(text)
        if event is None:
            return
        self._events += 1
        if event.Output:
            self._last_error = error_class_of(event.Output) or self._last_error
        outcome = _GO.get(event.Action)
        if outcome is None:
            return
        if event.Test:
            self._tally.add(f"{event.Package}::{event.Test}", outcome, self._last_error)
            if outcome is Outcome.FAILED:
                self._failed_in.add(event.Package)
        elif outcome is Outcome.FAILED and event.Package not in self._failed_in:  # it did not build
            self._tally.add(event.Package, Outcome.COLLECTION_ERROR, self._last_error or "build_failed")

    def _event(self, text: str) -> _GoEvent | None:
        if not text.startswith("{"):
            return None
        try:
            return self._decoder.decode(text)
        except msgspec.MsgspecError:
            return None

    def text_of(self, text: str) -> str:
        """The line as the plain command would have printed it, line end included; other lines are left as they are."""
        event = self._event(text)
        return f"{text}\n" if event is None else event.Output

    def found(self, exit_code: int) -> Found:
        """What the stream reported."""
        if not self._events:
            return None, Machine.MISSING
        return weigh_report(self._tally.counts(), exit_code)
