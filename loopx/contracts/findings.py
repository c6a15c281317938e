"""What a guard may find about a turn, as a closed vocabulary with data. Words for people are made elsewhere."""

from __future__ import annotations

import enum

import msgspec

from loopx.contracts.model import ContractEvaluation


class FindingCode(enum.StrEnum):
    """One kind of thing that a guard reports."""

    TEST_ADDED = "test_added"
    TEST_DELETED = "test_deleted"
    TEST_EDITED = "test_edited"
    TEST_SKIPPED = "test_skipped"
    XFAIL_ADDED = "xfail_added"
    FEWER_COLLECTED = "fewer_collected"
    TESTS_REPLACED = "tests_replaced"
    TEST_MASKED = "test_masked"
    CHECK_SCRIPT_CHANGED = "check_script_changed"
    RUNNER_CONFIG_CHANGED = "runner_config_changed"
    RUNNER_CONFIG_ADDED = "runner_config_added"
    CI_CHANGED = "ci_changed"
    CI_ADDED = "ci_added"
    LOCK_CHANGED = "lock_changed"
    PROTECTED_CHANGED = "protected_changed"
    PROTECTED_ADDED = "protected_added"
    PROGRAM_SHADOWED = "program_shadowed"
    PROGRAM_CHANGED = "program_changed"
    STARTUP_HOOK_ADDED = "startup_hook_added"
    STARTUP_HOOK_CHANGED = "startup_hook_changed"
    OUT_OF_SCOPE = "out_of_scope"
    CHECK_DEFINITION_CHANGED = "check_definition_changed"
    CLOCK_OR_NETWORK_FAKED = "clock_or_network_faked"
    REPORT_LOST = "report_lost"
    RUNNER_DISARMED = "runner_disarmed"
    CHECKS_REWRITTEN = "checks_rewritten"
    LINK_OUT_OF_TREE = "link_out_of_tree"
    GIT_RULES_CHANGED = "git_rules_changed"
    USER_HEAD_MOVED = "user_head_moved"
    USER_BRANCH_MOVED = "user_branch_moved"
    USER_INDEX_MOVED = "user_index_moved"
    GOAL_BRANCH_MOVED = "goal_branch_moved"
    SECOND_RUN_INCOMPLETE = "second_run_incomplete"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `refused`: it is a reason to refuse the turn; otherwise it is only disclosed."""

    code: FindingCode
    refused: bool
    path: str | None = None
    check: str | None = None
    before: int | None = None
    after: int | None = None
    detail: str = ""


class GuardVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The guard's judgement of a turn.

    When refused, `restore_paths` are to be put back from the goal's start (those that it does not have are deleted),
    and the present contents of `evidence_paths` kept as evidence first. `undecided`: the second evaluation could not
    be completed (session clock, machine trouble); the turn is neither accepted nor refused.
    """

    findings: tuple[Finding, ...] = ()
    refused: bool = False
    undecided: bool = False
    restore_paths: tuple[str, ...] = ()
    evidence_paths: tuple[str, ...] = ()
    restored: ContractEvaluation | None = None
    """The evaluation with the start's protected files put back, where one was needed."""

    @property
    def offending(self) -> tuple[Finding, ...]:
        """The findings for which the turn is refused."""
        return tuple(finding for finding in self.findings if finding.refused)
