"""What `doctor` found, in words, with what to do about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopx.presentation.renderers import words
from loopx.presentation.renderers.paint import Paint
from loopx.presentation.renderers.quota_markdown import row
from loopx.runtime.care import Finding, Severity
from loopx.runtime.mending import Mended

CODES: Mapping[str, str] = {
    "store_missing": "no store yet",
    "store_unreadable": "the store can't be read; it is left as it is",
    "integrity": "the store's pages are damaged",
    "foreign_keys": "the store's references are broken",
    "chain_broken": "the record of what changed was altered",
    "books_unbalanced": "the books do not balance",
    "run_index": "the ledger's index is not its length",
    "turn_without_spend": "a turn and its spend do not match",
    "phases_not_prefix": "a turn's phases are out of order",
    "journal_blocked": "a turn is blocked",
    "turn_interrupted": "a turn was interrupted; running its goal goes on with it",
    "counters_wrong": "a todo's counts are wrong",
    "reservation_of_nobody": "budget is held for a turn that is over",
    "claim_of_nobody": "a todo is claimed by nobody",
    "launch_of_nobody": "a launch has no end",
    "process_of_nobody": "a process outlived its turn",
    "spool_of_nobody": "output of an unknown launch",
    "worktree_of_nobody": "a work tree of no goal",
    "leftover_file": "a half-written file",
    "cadence_unconfirmed": "a cadence that its owner has not confirmed",
    "delivery_dead": "notifications were given up",
    "disk_low": "there is too little room",
    "remote_file_system": "the store is not on a local disk",
    "sqlite_race": "this SQLite has a known race, which LoopX steps around",
    "settings": "a setting of the store is not what it must be",
    "foreign_folder": "another program's folder",
    "tree_unusable": "the work tree is missing, or in the middle of a git operation",
    "machine_cap": "a cap on the launches of this machine",
}


def doctor_text(findings: Sequence[Finding], mended: Sequence[Mended], checked: Sequence[str], paint: Paint) -> str:
    """All findings, the bad ones first; or that everything is in order, and what was looked at."""
    lines = []
    for severity, color in ((Severity.BAD, paint.red), (Severity.UNTIDY, paint.yellow), (Severity.NOTE, paint.dim)):
        for one in findings:
            if one.severity is severity:
                lines += _finding(one, color(f"{severity:<7}"))
    if not any(one.severity is not Severity.NOTE for one in findings):
        lines.insert(0, f"  {paint.green('in order')}   {', '.join(checked)}")
    lines += [row("mended" if one.done else "left", f"{words.word(CODES, one.code)}: {one.subject}") for one in mended]
    left = sum(1 for one in findings if one.mendable) - sum(1 for one in mended if one.done)
    if left > 0 and not mended:
        lines.append(f"  {words.count(left, 'finding')} can be mended safely        loopx doctor --repair")
    return "\n".join(lines)


def _finding(one: Finding, severity: str) -> list[str]:
    lines = [f"  {severity} {words.word(CODES, one.code)}: {words.one_line(one.subject, 100)}"]
    if one.detail:
        lines.append(row("", words.one_line(one.detail, 110)))
    if one.command:
        lines.append(row("", words.command(one.command)))
    return lines
