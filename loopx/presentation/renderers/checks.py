"""Checks as text: each as it ends, and the contract in one word."""

from __future__ import annotations

from collections.abc import Sequence

from loopx.presentation.renderers import run_text as blocks
from loopx.presentation.renderers import words
from loopx.presentation.renderers.goals import check_rows
from loopx.presentation.renderers.paint import Paint
from loopx.runtime.goal_reads import CheckShown
from loopx.runtime.progress import CheckDone, CheckSummary, ProgressEvent


class Printer:
    """Implements `Observer`: one line for each check, when it ends."""

    def __init__(self, paint: Paint, *, silent: bool) -> None:
        self._paint = paint
        self._silent = silent

    def __call__(self, event: ProgressEvent, /) -> None:
        if isinstance(event, CheckDone) and not self._silent:
            print(check_line(event.check, self._paint), flush=True)


def check_line(check: CheckSummary, paint: Paint) -> str:
    """`✗ red  name  1 of 41 failing  0.8s`."""
    left = f"  {blocks.verdict(check, paint)}  {words.one_line(check.name, 60)}"
    return blocks.columns(left, words.joined([blocks.numbers(check), words.duration(check.duration_ms)]), 52)


def run_text(checks: Sequence[CheckSummary], paint: Paint) -> str:
    """The contract's verdict, after its checks were printed one by one."""
    red = [check for check in checks if check.verdict != "green"]
    if not red:
        return f"  {paint.green('green')}   {words.count(len(checks), 'check')}"
    return f"  {paint.red('red')}     {len(red)} of {words.count(len(checks), 'check')}"


def list_text(checks: Sequence[CheckShown], paint: Paint) -> str:
    """The checks of a contract."""
    return "\n".join(line for check in checks for line in check_rows(check, paint)) or "  no checks"
