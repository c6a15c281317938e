"""What one turn may use of its goal's budgets: what its start reserved. The host is ended when it has used that up.

Wall-clock becomes the host's deadline; tokens and dollars are watched in what the host says of itself while it runs. A
host that only reports at its end is charged then. It reads the reservation and the stream; it reserves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from loopx.control_plane.quota.policy import BudgetUnit
from loopx.hosts import usage as usages
from loopx.hosts.protocol import HostEvent, HostEventKind, Usage
from loopx.store.store import Store

TURN_BUDGET = "turn_budget"
"""The code of a host's end that this caused."""


def of_turn(store: Store, turn_key: str) -> dict[BudgetUnit, int]:
    """What the turn reserved of each budget; empty where its goal has none."""
    with store.read() as tx:
        rows = tx.all("meters.reserved_by", turn_key=turn_key)
    return {BudgetUnit(row["unit"]): int(row["amount"]) for row in rows}


class Allowance:
    """Watches one run. `before`: the session's counters when the run began, where the host counts over a session."""

    def __init__(self, limits: Mapping[BudgetUnit, int], before: Usage | None, *, resumed: bool) -> None:
        self._limits = limits
        self._before = before
        self._resumed = resumed
        self.spent = False

    def see(self, event: HostEvent) -> None:
        """Look at one event; `spent` from the one on that reaches a limit."""
        if event.kind is not HostEventKind.USAGE or event.usage is None or not self._limits:
            return
        used = event.usage
        if event.running_total:
            used = usages.delta(used, self._before, resumed=self._resumed)
        amounts = _amounts(used)
        self.spent = self.spent or any(amounts.get(unit, 0) >= limit for unit, limit in self._limits.items())


def _amounts(used: Usage) -> dict[BudgetUnit, int]:
    """What is known of the units that a stream can tell."""
    known = {
        BudgetUnit.INPUT_TOKENS: used.input_tokens,
        BudgetUnit.CACHED_TOKENS: used.cached_input_tokens,
        BudgetUnit.OUTPUT_TOKENS: used.output_tokens,
        BudgetUnit.MICROUSD: used.cost_microusd,
    }
    if used.input_tokens is not None or used.output_tokens is not None:
        known[BudgetUnit.TOKENS] = (used.input_tokens or 0) + (used.output_tokens or 0)
    return {unit: amount for unit, amount in known.items() if amount is not None}
