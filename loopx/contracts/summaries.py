"""Reading a test runner's own text, line by line, where it writes no report: unittest, TAP, cargo, jest and vitest.

The code under test prints to the same stream, so only the *last* complete summary counts, and one that contradicts the
exit code counts as none. Bounded memory: nothing but names and numbers is kept.
"""

from __future__ import annotations

import re
from typing import Protocol

from loopx.contracts.model import Machine, PartCounts
from loopx.contracts.signature import error_class_of
from loopx.contracts.tally import MAX_FAILING, MAX_KEYS, Outcome, Tally, clip, keys_of

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
Found = tuple[PartCounts | None, Machine]
_NOTHING: Found = (None, Machine.MISSING)


class Scanner(Protocol):
    """Reads lines as they come; says at the end what they reported, given the exit code."""

    def line(self, text: str) -> None: ...

    def found(self, exit_code: int) -> Found: ...


def plain(text: str) -> str:
    """A line without its colours."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def _weigh(parts: PartCounts | None, exit_code: int, *, strict: bool) -> Found:
    """A summary that says failed while the command says success (or, strictly, the reverse) is no summary."""
    if parts is None:
        return _NOTHING
    if (parts.failed > 0 and exit_code == 0) or (strict and parts.failed == 0 and parts.total and exit_code != 0):
        return None, Machine.CONTRADICTS
    return parts, Machine.READ


def weigh_report(parts: PartCounts | None, exit_code: int) -> Found:
    """The same rule for a report file: failures with exit code 0 contradict; a red command with none does not."""
    return _weigh(parts, exit_code, strict=False)


class UnittestScanner:
    """`Ran N tests` and the line `OK`/`FAILED (...)` after it, with the `FAIL:`/`ERROR:` headers before it."""

    _HEADER = re.compile(r"(FAIL|ERROR|UNEXPECTED SUCCESS): (.+)")
    _RAN = re.compile(r"Ran (\d+) tests? in [\d.]+s")
    _END = re.compile(r"(OK|FAILED|NO TESTS RAN)(?: \((.*)\))?")
    _COUNT = re.compile(r"(failures|errors|skipped|expected failures|unexpected successes)=(\d+)")

    def __init__(self) -> None:
        self._failing: dict[str, None] = {}
        self._headers = 0
        self._classes: set[str] = set()
        self._after_rule = False
        self._ran: int | None = None
        self._last: PartCounts | None = None
        self._last_failed = False

    def line(self, text: str) -> None:
        """Read one line."""
        if self._ran is not None and text.strip():
            if ended := self._END.fullmatch(text.strip()):
                self._close(ended[1], ended[2] or "")
            self._ran = None
        elif ran := self._RAN.fullmatch(text.strip()):
            self._ran = int(ran[1])
        elif self._after_rule and (header := self._HEADER.fullmatch(text.strip())):
            self._headers += 1
            if len(self._failing) < MAX_KEYS:
                self._failing[header[2]] = None
        elif self._failing and text[:1].isalpha() and (name := error_class_of(text)):
            self._classes.add(name)
        self._after_rule = text.startswith("=" * 70)

    def _close(self, word: str, details: str) -> None:
        counts = {name: int(number) for name, number in self._COUNT.findall(details)}
        declared = counts.get("failures", 0) + counts.get("errors", 0) + counts.get("unexpected successes", 0)
        ran = self._ran or 0
        complete = self._headers == declared == len(self._failing)
        skipped, expected = counts.get("skipped", 0), counts.get("expected failures", 0)
        # A failing subtest or fixture has a header of its own, but is no test of its own.
        failed_tests = {name.partition(")")[0] for name in self._failing if not name.startswith("setUp")}
        self._last_failed = word == "FAILED"
        self._last = PartCounts(
            source="unittest",
            total=ran,
            passed=max(0, ran - (len(failed_tests) if complete else declared) - skipped - expected),
            failed=declared,
            skipped=skipped,
            expected_failures=expected,
            collection_errors=sum(map(_is_load_error, self._failing)) if complete else 0,
            failing=_shown(self._failing) if complete else (),
            failing_keys=keys_of(self._failing) if complete else None,
            error_classes=tuple(sorted(self._classes)),
        )
        self._failing, self._headers, self._classes = {}, 0, set()

    def found(self, exit_code: int) -> Found:
        """What the last summary says; 5 is unittest's own code for no tests."""
        if self._last is not None and self._last_failed != (self._last.failed > 0):
            return None, Machine.CONTRADICTS
        return _weigh(self._last, exit_code, strict=True)


def _is_load_error(name: str) -> bool:
    """A module that could not be imported is run as one test of its own."""
    return "_FailedTest" in name


def _shown(failing: dict[str, None]) -> tuple[str, ...]:
    return tuple(clip(name) for name in sorted(failing)[:MAX_FAILING])


class TapScanner:
    """TAP 12 to 14, with nested subtests named by the path of their `# Subtest:` lines."""

    _RESULT = re.compile(r"( *)(not ok|ok)\b *(\d+)? *-? *(.*)")
    _DIRECTIVE = re.compile(r"\s# (SKIP|TODO)\b.*$", re.IGNORECASE)

    def __init__(self) -> None:
        self._tally = Tally("tap")
        self._is_tap = False
        self._path: dict[int, str] = {}
        self._class: str | None = None
        self._last: tuple[str, Outcome] | None = None

    def line(self, text: str) -> None:
        """Read one line."""
        if re.fullmatch(r"TAP version 1[234]|1\.\.\d+(\s.*)?", text.strip()):
            self._is_tap = True
            return
        depth = (len(text) - len(text.lstrip(" "))) // 4
        if text.lstrip().startswith("# Subtest: "):
            self._path[depth] = text.strip()[len("# Subtest: ") :]
        elif result := self._RESULT.fullmatch(text.rstrip()):
            self._result(depth, result[2] == "ok", result[3] or "", result[4])
        elif self._last is not None and self._last[1] is Outcome.FAILED and (name := error_class_of(text)):
            self._tally.add(*self._last, name)

    def _result(self, depth: int, passed: bool, number: str, described: str) -> None:
        directive = self._DIRECTIVE.search(f" {described}")
        name = self._DIRECTIVE.sub("", f" {described}").strip() or number
        outcome = Outcome.PASSED if passed else Outcome.FAILED
        if directive is not None:
            outcome = Outcome.SKIPPED if directive[1].upper() == "SKIP" else Outcome.EXPECTED_FAILURE
        parents = [self._path[level] for level in range(depth) if level in self._path]
        self._last = (" > ".join([*parents, name]), outcome)
        self._tally.add(*self._last)

    def found(self, exit_code: int) -> Found:
        """What the stream reported, when it was TAP at all."""
        return _weigh(self._tally.counts(), exit_code, strict=False) if self._is_tap else _NOTHING


class CargoScanner:
    """`test NAME ... ok` lines and the `test result:` line of each binary that cargo runs."""

    _BINARY = re.compile(r"\s*(?:Running (?:unittests )?(\S+)|Doc-tests (\S+))")
    _TEST = re.compile(r"test (.+?) \.\.\. (ok|FAILED|ignored)\b.*")
    _RESULT = re.compile(
        r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored; \d+ measured; \d+ filtered out.*"
    )

    def __init__(self) -> None:
        self._tally = Tally("cargo")
        self._binary = ""
        self._sums = [0, 0, 0]
        self._results = 0

    def line(self, text: str) -> None:
        """Read one line."""
        if test := self._TEST.fullmatch(text.strip()):
            outcome = {"ok": Outcome.PASSED, "FAILED": Outcome.FAILED}.get(test[2], Outcome.SKIPPED)
            self._tally.add(f"{self._binary}::{test[1]}", outcome, "panic")
        elif result := self._RESULT.fullmatch(text.strip()):
            self._results += 1
            self._sums = [have + int(new) for have, new in zip(self._sums, result.groups(), strict=True)]
        elif binary := self._BINARY.match(text):
            self._binary = binary[1] or binary[2]

    def found(self, exit_code: int) -> Found:
        """The sums over all binaries, with names where every test's line was readable."""
        if not self._results:
            return _NOTHING
        passed, failed, skipped = self._sums
        parts = self._tally.counts()
        if parts is None or (parts.passed, parts.failed, parts.skipped) != (passed, failed, skipped):
            total = passed + failed + skipped
            parts = PartCounts(source="cargo", total=total, passed=passed, failed=failed, skipped=skipped)
        return _weigh(parts, exit_code, strict=False)


class JavaScriptScanner:
    """The `Tests` summary line of jest and vitest, and the names of what failed."""

    _SUMMARY = re.compile(r"\s*Tests:?\s+((?:\d+ \w+[,| ]*)+)(?:\((\d+)\))?\s*")
    _COUNT = re.compile(r"(\d+) (passed|failed|skipped|todo|total|pending|expected fail)")
    _FAILED = re.compile(r"\s*(?:● (?!Test suite failed to run|Console)(\S.*)|FAIL\s+(\S+ > .+))")

    def __init__(self, source: str = "javascript") -> None:
        self._source = source
        self._failing: dict[str, None] = {}
        self._classes: set[str] = set()
        self._last: PartCounts | None = None

    def line(self, text: str) -> None:
        """Read one line."""
        if failed := self._FAILED.fullmatch(text.rstrip()):
            if len(self._failing) < MAX_KEYS:
                self._failing[failed[1] or failed[2]] = None
        elif summary := self._SUMMARY.fullmatch(text):
            self._close({name: int(number) for number, name in self._COUNT.findall(summary[1])}, summary[2])
        elif self._failing and (name := error_class_of(text)):
            self._classes.add(name)

    def _close(self, counts: dict[str, int], total: str | None) -> None:
        if not counts:
            return
        failed = counts.get("failed", 0)
        skipped = counts.get("skipped", 0) + counts.get("pending", 0)
        self._last = PartCounts(
            source=self._source,
            total=int(total) if total else counts.get("total", sum(counts.values())),
            passed=counts.get("passed", 0),
            failed=failed,
            skipped=skipped,
            expected_failures=counts.get("todo", 0),
            failing=_shown(self._failing) if len(self._failing) == failed else (),
            failing_keys=keys_of(self._failing) if len(self._failing) == failed else None,
            error_classes=tuple(sorted(self._classes)),
        )
        self._failing, self._classes = {}, set()

    def found(self, exit_code: int) -> Found:
        """What the last summary line says."""
        return _weigh(self._last, exit_code, strict=False)


class AnyScanner:
    """For commands whose runner is hidden behind make, npm or a script: one runner's summary counts, two are none."""

    def __init__(self) -> None:
        self._scanners: tuple[Scanner, ...] = (UnittestScanner(), TapScanner(), CargoScanner(), JavaScriptScanner())

    def line(self, text: str) -> None:
        """Read one line."""
        for scanner in self._scanners:
            scanner.line(text)

    def found(self, exit_code: int) -> Found:
        """The one summary, if there is exactly one kind."""
        read = [answer for scanner in self._scanners if (answer := scanner.found(exit_code))[1] is not Machine.MISSING]
        return read[0] if len(read) == 1 else _NOTHING
