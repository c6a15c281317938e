"""The prompt: what an agent needs for one turn, and at most 1.5 KB of LoopX's own around the person's words."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from loopx.control_plane.turn_driver.journal import TurnPurpose
from loopx.runtime import prompt
from loopx.runtime.prompt import OVERHEAD_BYTES, PromptContext


def context(**fields: Any) -> PromptContext:
    base: dict[str, Any] = {
        "purpose": TurnPurpose.WORK,
        "objective": "make f right",
        "todo_title": None,
        "todo_body": "",
        "checks": (("test", "pytest -q"),),
    }
    return PromptContext(**(base | fields))


FULL: dict[str, Any] = {
    "checks": tuple((f"check {number}", "pytest -q " + "x" * 90) for number in range(30)),
    "failure": "\n".join(f"assertion {number} failed: " + "ü" * 60 for number in range(40)),
    "recurring": True,
    "restored": tuple(f"tests/test_{number}.py" for number in range(40)),
    "protected": tuple(f"tests/test_{number}.py" for number in range(40)),
    "write_scope": tuple(f"src/part_{number}/**" for number in range(40)),
    "answers": tuple(f"Question {number}? -> " + "yes " * 60 for number in range(3)),
}


@pytest.mark.parametrize(
    ("purpose", "speaks_tools"), list(itertools.product((TurnPurpose.WORK, TurnPurpose.REPAIR), (True, False)))
)
def test_what_loopx_adds_stays_within_its_promise(purpose: TurnPurpose, speaks_tools: bool) -> None:
    for names in itertools.chain.from_iterable(itertools.combinations(FULL, size) for size in range(len(FULL) + 1)):
        built = prompt.build(
            context(purpose=purpose, speaks_tools=speaks_tools, **{name: FULL[name] for name in names})
        )
        assert built.overhead_bytes <= OVERHEAD_BYTES, names
        assert built.total_bytes == len(built.text.encode())


def test_a_full_prompt_still_says_what_failed_who_answered_and_how_to_end() -> None:
    text = prompt.build(context(purpose=TurnPurpose.REPAIR, **FULL)).text
    for words in ("assertion 0", "the same failure as before", "Question 0?", "check 0", "LOOPX_RESULT_FILE"):
        assert words in text


def test_how_to_end_names_what_the_agent_has() -> None:
    with_tools = prompt.build(context(speaks_tools=True)).text
    without = prompt.build(context(speaks_tools=False)).text
    assert "complete_todo" in with_tools and "LOOPX_RESULT_FILE" not in with_tools
    assert '"kind": "completion|question|blocker|no_change"' in without


def test_the_persons_words_are_not_cut() -> None:
    objective = "word " * 5000
    built = prompt.build(context(objective=objective, todo_title="part", todo_body="body " * 1000))
    assert objective in built.text and "body " * 999 in built.text
    assert built.overhead_bytes <= OVERHEAD_BYTES
