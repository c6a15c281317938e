"""Query plans are pinned: a statement on the hot path never walks through a table that grows with history.

The plans are those of a store without statistics, which is what every store is.
"""

from __future__ import annotations

import re

import pytest

from loopx.store.queries import all_names, sql
from loopx.store.store import Store
from tests.store.kit import open_store

GROWING = frozenset(
    {"todos", "todo_deps", "turns", "turn_phases", "turn_claims", "ledger", "meters", "evidence", "events", "host_runs"}
)
WHOLE_STORE = re.compile(r"care\.|events\.goals_with_events")
"""What looks through everything, by its nature: doctor, gc and export."""
BY_ITS_INDEX = {
    "turns.open_all": "turns_one_open",
    "events.latest_all": "events_by_time",
    "events.newest": "events_by_time",
    "events.since": "events_by_time",
    "gates.open_all": "gates_by_age",
    "gates.count_open": "gates_by_age",
    "schedules.pending_acks": "schedules_pending",
}
"""Statements that walk along an index, and stop at a limit; the index holds only what they ask for, or its order."""

ONE_ROW = frozenset({"CONSTANT", "once", "last"})
"""What SQLite calls a scan and is one row: a statement without a table, and a sub-select with LIMIT 1."""

DECISION = (
    "goals.get",
    "goals.definition",
    "ledger.last_spend",
    "ledger.spent_since",
    "ledger.voided_in_window",
    "ledger.frees_at",
    "meters.reserved",
    "meters.total",
    "meters.before",
    "meters.frees_at",
    "todos.ready",
    "todos.reclaimable",
    "todos.any_ready_gated",
    "todos.any_unended",
    "todos.any_without_wake",
    "todos.wake_at",
    "todos.claims_end_at",
    "todos.monitor_due",
    "todos.monitor_next",
    "gates.open_of_goal",
    "gates.expired",
    "schedules.get",
    "turns.open_of_goal",
    "capabilities.first_with_status",
)
"""What one should-run decision asks."""
TURN = (
    "turns.open_of",
    "turns.get",
    "turns.phases",
    "turns.move",
    "turns.insert_phase",
    "turns.last_of_todo",
    "turns.last_of_goal",
    "turns.save",
    "turns.by_token",
    "turns.ack_closed",
    "leases.acquire",
    "leases.renew",
    "leases.get",
    "ledger.by_effect",
    "ledger.move_index",
    "ledger.live_of_turn",
    "goals.move_head",
    "goals.next_turn_number",
    "meters.record",
    "hosts.last_of_turn",
    "todos.claim",
    "todos.finish",
)
"""What one turn asks."""
SCREEN = (
    "goals.attention",
    "goals.without_wake",
    "goals.next_up",
    "goals.due",
    "goals.next_due",
    "goals.active_page",
    "goals.page_by_state",
    "goals.closed_since",
    "gates.open_all",
    "turns.open_all",
    "turns.lines",
    "turns.page",
    "todos.unended_page",
    "events.latest",
    "events.page",
    "ledger.latest",
    "ledger.page",
    "evidence.of_turn",
    "evidence.page",
    "outbox.due",
    "schedules.pending_acks",
)
"""What `status`, the page and the worker ask, with a thousand goals as with ten: no sorting either."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return open_store(tmp_path_factory.mktemp("plans"))


def plan(store: Store, name: str) -> list[str]:
    text = sql(name)
    parameters = dict.fromkeys(re.findall(r":(\w+)", text))
    with store.connection.raw_read() as connection:
        return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", parameters)]


def tables(text: str) -> dict[str, str]:
    """Aliases of a statement, with the tables that they stand for."""
    found = re.findall(r"(?:FROM|JOIN|UPDATE|INTO)\s+(\w+)(?:\s+(?:AS\s+)?([a-z]\w?))?\b", text)
    return {alias or table: table for table, alias in found} | {table: table for table, _ in found}


@pytest.mark.parametrize("name", sorted(all_names()))
def test_no_statement_walks_through_a_table_that_grows(store: Store, name: str) -> None:
    if WHOLE_STORE.match(name):
        return
    known = tables(sql(name))
    for step in plan(store, name):
        walked = re.match(r"SCAN (\w+)(.*)", step)
        if walked is None or known.get(walked[1]) not in GROWING:
            continue
        assert name in BY_ITS_INDEX and BY_ITS_INDEX[name] in walked[2], f"{name}: {step}"


PINNED = {
    "turns.open_of_goal": "turns_one_open",
    "todos.any_ready_gated": "todos_gated",
    "goals.to_look_at": "goals_due",
    "goals.next_due_after": "goals_due",
}
"""Where another index would serve too, and would read all of a goal's history or every goal."""


@pytest.mark.parametrize("name", sorted(PINNED))
def test_a_statement_reads_the_index_that_holds_only_what_it_asks_for(store: Store, name: str) -> None:
    assert any(PINNED[name] in step for step in plan(store, name)), plan(store, name)


@pytest.mark.parametrize("name", [*DECISION, *TURN, *SCREEN])
def test_the_hot_statements_search_and_do_not_sort(store: Store, name: str) -> None:
    for step in plan(store, name):
        assert "TEMP B-TREE FOR ORDER BY" not in step, f"{name}: {step}"
        walked = re.match(r"SCAN (\w+)(.*)", step)
        if walked is not None and walked[1] not in ONE_ROW:
            assert BY_ITS_INDEX.get(name, "\0") in walked[2] or "USING INDEX goals_" in step, f"{name}: {step}"
