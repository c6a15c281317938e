"""The outcome contract as values: checks, what one run of them showed, and the contract's state.

Decides only what follows from the values themselves. It runs nothing, reads no file, and holds no text for people:
`reason` strings are short machine words (loops, "The contract: the only judge").
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec

from loopx.control_plane.canonical import sha256_hex

DEFAULT_TIMEOUT_S = 120
MAX_TIMEOUT_S = 24 * 3600


class CheckKind(enum.StrEnum):
    """`baseline` is captured once before work; `differential` is compared with a named capture."""

    CHECK = "check"
    BASELINE = "baseline"
    DIFFERENTIAL = "differential"


class ExpectKind(enum.StrEnum):
    """What makes a check green. `contains` and `json` look at the output only, not at the exit code."""

    EXIT_ZERO = "exit_zero"
    CONTAINS = "contains"
    JSON = "json"


class Expect(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is filled for `contains`; `pointer` (RFC 6901) and `value` (canonical JSON text) for `json`."""

    kind: ExpectKind = ExpectKind.EXIT_ZERO
    text: str = ""
    pointer: str = ""
    value: str = ""


class DifferentialRule(enum.StrEnum):
    """How a differential check's output stands to its capture. All but `same` compare one number."""

    SAME = "same"
    NOT_LOWER = "not_lower"
    NOT_HIGHER = "not_higher"
    LOWER = "lower"
    HIGHER = "higher"


class ProtectPolicy(enum.StrEnum):
    """What an edit of a protected file leads to."""

    REFUSE = "refuse"
    BOTH_WAYS = "both_ways"
    DISCLOSE = "disclose"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `command` is an argv, or one shell line as text. `timeout_s` is in seconds, 1 to 86,400.

    `flaky_retries` re-runs a red check; a flip is recorded and is not green. `held_out` checks are never told to the
    agent and gate completion only. `junit` names a JUnit XML file (relative to the work tree) which the command writes.
    """

    name: str
    command: tuple[str, ...] | str
    timeout_s: int = DEFAULT_TIMEOUT_S
    expect: Expect = Expect()
    kind: CheckKind = CheckKind.CHECK
    against: str | None = None
    compare: DifferentialRule = DifferentialRule.SAME
    pointer: str | None = None
    """Where a baseline or differential check's number is in its JSON output; None: the output's last number."""
    tolerance_percent: int = 0
    primary: bool = False
    held_out: bool = False
    flaky_retries: int = 0
    cwd: str = "."
    junit: str | None = None


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """A goal's contract. `protected` are extra globs which the person names.

    `workers` > 1 says that the checks are independent and how many may run at once. `dependency_dirs`
    names ignored folders that a clean snapshot needs; empty: they are detected.
    """

    checks: tuple[Check, ...] = ()
    policy: ProtectPolicy = ProtectPolicy.BOTH_WAYS
    protected: tuple[str, ...] = ()
    confirm_in_snapshot: bool = True
    dependency_dirs: tuple[str, ...] = ()
    workers: int = 1

    def named(self, name: str) -> Check | None:
        """The check of that name, or None."""
        return next((check for check in self.checks if check.name == name), None)


class Verdict(enum.StrEnum):
    """What one check says. Only `green` is green: `flaky` was red and then green on the same tree."""

    GREEN = "green"
    RED = "red"
    STARVED = "starved"
    NOT_EVALUABLE = "not_evaluable"
    FLAKY = "flaky"


class Machine(enum.StrEnum):
    """What became of the machine-readable report that LoopX asked the runner for."""

    NOT_ASKED = "not_asked"
    READ = "read"
    MISSING = "missing"
    CONTRADICTS = "contradicts"


class Reason(enum.StrEnum):
    """Why a check is not green."""

    EXIT_CODE = "exit_code"
    KILLED = "killed_by_signal"
    TIMEOUT = "timeout"
    TEXT_ABSENT = "text_absent"
    NOT_JSON = "output_not_json"
    POINTER_ABSENT = "pointer_absent"
    VALUE_DIFFERS = "value_differs"
    OUTPUT_TOO_LARGE = "output_too_large"
    DIFFERS = "differs_from_capture"
    NO_NUMBER = "no_number"
    CAPTURE_MISSING = "capture_missing"
    PROGRAM_MISSING = "program_missing"
    NOT_EXECUTABLE = "not_executable"
    CANNOT_START = "cannot_start"
    SESSION_CLOCK = "session_clock"
    CANCELLED = "cancelled"
    FLIPPED = "flipped"


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A check's output, bounded: its head and tail, and how many bytes between them were dropped."""

    head: str = ""
    tail: str = ""
    omitted_bytes: int = 0
    total_bytes: int = 0


class PartCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one check, read from the runner's own report. A count that the report does not carry is None.

    `failing` holds test ids for people (capped; `failed` is the true count). The `*_keys` are short digests of test
    ids, sorted, and None when the report names no ids or holds too many; they tell a moved count from a changed set.
    `total` includes the files that could not be collected, which `collection_errors` counts.
    """

    source: str
    total: int
    passed: int
    failed: int
    skipped: int = 0
    expected_failures: int = 0
    collection_errors: int = 0
    collected_digest: str | None = None
    failing: tuple[str, ...] = ()
    error_classes: tuple[str, ...] = ()
    failing_keys: tuple[str, ...] | None = None
    collected_keys: tuple[str, ...] | None = None
    skipped_keys: tuple[str, ...] | None = None
    expected_keys: tuple[str, ...] | None = None

    @property
    def collected(self) -> int:
        """How many tests the runner found."""
        return self.total - self.collection_errors


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """What a baseline check printed, reduced to what a differential check is compared with."""

    name: str
    output_hash: str
    number: float | None
    definition_hash: str
    tree_hash: str | None


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluated check, bound to its definition and to the tree on which it ran. Durations in milliseconds."""

    name: str
    verdict: Verdict
    definition_hash: str
    tree_hash: str | None
    reason: Reason | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    duration_ms: int = 0
    output: Output = Output()
    parts: PartCounts | None = None
    machine: Machine = Machine.NOT_ASKED
    signature: str | None = None
    capture: Capture | None = None
    primary: bool = False
    held_out: bool = False
    attempts: tuple[Verdict, ...] = ()
    """The verdict of every run of the check, in order; more than one when it was re-run."""
    cached: bool = False
    survivors: int = 0
    """Processes of the check's group that outlived being killed."""


class ChecksState(enum.StrEnum):
    """The contract as one word, as the loop's failure is classified by it (contracts, section 8)."""

    GREEN = "green"
    RED = "red"
    RED_STARVED = "red_starved"
    NOT_EVALUABLE = "not_evaluable"


class ContractEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Every check's result on one tree, in the contract's order."""

    results: tuple[CheckResult, ...]
    tree_hash: str | None = None

    @property
    def all_green(self) -> bool:
        """At least one check, and every one green."""
        return bool(self.results) and all(result.verdict is Verdict.GREEN for result in self.results)

    @property
    def state(self) -> ChecksState:
        """One judged red makes it red; else one starved makes it starved; else one that could not run decides."""
        verdicts = {result.verdict for result in self.results}
        if verdicts & {Verdict.RED, Verdict.FLAKY}:
            return ChecksState.RED
        if Verdict.STARVED in verdicts:
            return ChecksState.RED_STARVED
        return ChecksState.GREEN if verdicts == {Verdict.GREEN} else ChecksState.NOT_EVALUABLE

    @property
    def signatures(self) -> tuple[str, ...]:
        """The failure signatures of the checks that are not green, sorted: what recurrence compares."""
        return tuple(sorted(result.signature for result in self.results if result.signature is not None))

    def named(self, name: str) -> CheckResult | None:
        """The result of that check, or None."""
        return next((result for result in self.results if result.name == name), None)


def definition_hash(check: Check) -> str:
    """The pin of a check: a digest over every field, so any edit of the definition shows."""
    return sha256_hex(check)


def visible_checks(contract: Contract) -> tuple[Check, ...]:
    """The checks that an agent may be told about."""
    return tuple(check for check in contract.checks if not check.held_out)


def narrowed(contract: Contract, names: Collection[str]) -> Contract:
    """The contract with these checks only, and the baselines that they are compared with."""
    chosen = [check for check in contract.checks if check.name in names]
    against = {check.against for check in chosen}
    kept = tuple(check for check in contract.checks if check in chosen or check.name in against)
    return msgspec.structs.replace(contract, checks=kept)


def merged(contract: Contract, *evaluations: ContractEvaluation) -> ContractEvaluation:
    """The results of several evaluations as one, in the contract's order; of two results the later one counts."""
    found = {result.name: result for evaluation in evaluations for result in evaluation.results}
    results = tuple(found[check.name] for check in contract.checks if check.name in found)
    trees = {evaluation.tree_hash for evaluation in evaluations}
    return ContractEvaluation(results=results, tree_hash=trees.pop() if len(trees) == 1 else None)


def visible_results(evaluation: ContractEvaluation) -> tuple[CheckResult, ...]:
    """The results that an agent may be told about."""
    return tuple(result for result in evaluation.results if not result.held_out)
