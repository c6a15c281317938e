"""No order of claim, renewal, expiry, completion, drop, reopening, turn and answer gives two owners, loses an answer,
or ends where nothing that LoopX says goes on.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.store.interleaving import Interleavings


@pytest.mark.parametrize(
    "examples", [pytest.param(40, id="some"), pytest.param(1500, id="many", marks=pytest.mark.chaos)]
)
@pytest.mark.timeout(3600)
def test_people_and_agents_in_any_order(examples: int) -> None:
    run_state_machine_as_test(
        Interleavings,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
