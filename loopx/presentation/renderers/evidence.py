"""Evidence as text: what was found, by whom, on which tree."""

from __future__ import annotations

import msgspec

from loopx.presentation.renderers import words
from loopx.runtime.evidence_service import EvidencePage
from loopx.store.evidence import Evidence


def page_text(page: EvidencePage, goal_id: str, now_ms: int) -> str:
    """One line for each piece."""
    if not page.evidence:
        return f"  nothing is on record of {goal_id} yet"
    lines = [
        f"  {one.evidence_id}  {one.produced:<8}  {one.kind:<6}  {one.verdict or '':<13}  "
        f"{words.one_line(one.name, 48)}   {_tree(one)}{words.ago(one.at_ms, now_ms)}"
        for one in page.evidence
    ]
    if page.next_after is not None:
        lines.append(f"  more:  loopx evidence list {goal_id} --after {page.next_after}")
    return "\n".join(lines)


def _tree(one: Evidence) -> str:
    return f"tree {one.tree_hash[:7]}{words.DOT}" if one.tree_hash else ""


def evidence_text(one: Evidence, now_ms: int) -> str:
    """One piece whole; a check's output at its end."""
    body = msgspec.json.decode(one.body)
    lines = [
        f"  {one.evidence_id}   {one.kind}   {one.produced}   {one.verdict or ''}".rstrip(),
        f"    name       {words.one_line(one.name, 100)}",
        f"    goal       {one.goal_id}" + (f"   turn {one.turn_key}" if one.turn_key else ""),
        f"    tree       {one.tree_hash or 'none'}",
        f"    when       {words.clock(one.at_ms, now_ms)}",
    ]
    if isinstance(body, dict):
        output = body.pop("output", None)
        lines += [f"    {key:<11}{_value(value)}" for key, value in body.items() if value not in (None, "", [], {})]
        lines += _output(output)
    return "\n".join(lines)


def _value(value: object) -> str:
    return words.one_line(value if isinstance(value, str) else msgspec.json.encode(value).decode(), 100)


def _output(output: object) -> list[str]:
    if not isinstance(output, dict):
        return []
    text = str(output.get("tail") or output.get("head") or "")
    return [f"      {words.one_line(line, 110)}" for line in text.splitlines()[-20:]]
