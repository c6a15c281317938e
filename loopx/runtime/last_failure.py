"""What an agent is told of the turn before its own: which checks are red and how, and what was not accepted.

One place for prompts and tools, so that neither says more than the other. Nothing of a held-out check is in it: no
name, no output, and not that there is one.
"""

from __future__ import annotations

import msgspec

from loopx.contracts.model import CheckResult
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.turn_driver.journal import EvidenceKind, Turn, TurnResult
from loopx.runtime.evaluation import failure_text
from loopx.runtime.host_port import IDENTICAL_ACTIONS
from loopx.store import evidence
from loopx.store.connection import Tx

_PLACES = {"snapshot: ": "in a clean copy of the tree: ", "todo: ": ""}
REPEATED = "It was ended, because it did the same thing again and again: try another way."
UNMET = "All of these checks are green, but the goal is not reached: read the objective again."


def text(tx: Tx, turn: Turn | None) -> str:
    """A few lines; empty where nothing failed."""
    if turn is None or turn.result is None:
        return ""
    found = [one for one in evidence.of_turn(tx, turn.turn_key) if one.kind is EvidenceKind.CHECK]
    results = [_placed(one.name, msgspec.json.decode(one.body, type=CheckResult)) for one in found]
    shown = tuple(result for result in results if not result.held_out)
    lines = [failure_text(shown), *_refused(turn.result)]
    all_green = bool(shown) and all(result.verdict == "green" for result in shown)
    if all_green and turn.result.contract is ContractState.RED:
        lines.append(UNMET)
    return "\n".join(line for line in lines if line)


def _placed(name: str, result: CheckResult) -> CheckResult:
    for prefix, words in _PLACES.items():
        if name.startswith(prefix):
            return msgspec.structs.replace(result, name=f"{words}{result.name}")
    return result


def _refused(result: TurnResult) -> list[str]:
    """What a guard refused and nobody but the agent can take back; files that were put back are told by themselves."""
    restored = set(result.restore.paths) if result.restore is not None else set()
    lines = [REPEATED] if IDENTICAL_ACTIONS in result.findings else []
    for finding in result.findings:
        code, _, path = finding.partition(" ")
        if code.endswith(":refused") and path not in restored:
            words = code.removesuffix(":refused").replace("_", " ")
            lines.append(f"Not accepted, take it back: {words}{f' {path}' if path else ''}")
    return lines
