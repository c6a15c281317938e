"""The event chain: every link checked, every way of altering it noticed, and no commit without its event."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from loopx.store import events, goals
from loopx.store.store import Store
from tests.store.kit import make_goal, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(tmp_path)
    make_goal(made, "goal")
    make_goal(made, "other")
    for number in range(5):
        with made.write() as tx:
            events.append(tx, "goal", "noted", made.now_ms(), {"n": number})
    return made


def broken(store: Store, goal_id: str = "goal") -> int | None:
    with store.read() as tx:
        return events.broken_link(tx, goal_id)


def alter(store: Store, statement: str) -> None:
    connection = sqlite3.connect(store.path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_an_untouched_chain_holds_and_each_goal_has_its_own(store: Store) -> None:
    assert broken(store) is None and broken(store, "other") is None
    with store.read() as tx:
        seqs = [row["seq"] for row in tx.all("events.page", goal_id="goal", after=0, limit=100)]
        assert seqs == list(range(1, len(seqs) + 1))
        assert goals.row_of(tx, "goal")["event_seq"] == len(seqs)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = '{\"n\":99}' WHERE goal_id = 'goal' AND seq = 4",
        "UPDATE events SET kind = 'quota_voided' WHERE goal_id = 'goal' AND seq = 4",
        "UPDATE events SET at_ms = at_ms + 1 WHERE goal_id = 'goal' AND seq = 4",
        "UPDATE events SET turn_key = 't' WHERE goal_id = 'goal' AND seq = 4",
        "UPDATE events SET hash = prev_hash WHERE goal_id = 'goal' AND seq = 4",
        "DELETE FROM events WHERE goal_id = 'goal' AND seq = 4",
        "DELETE FROM events WHERE goal_id = 'goal' AND seq = (SELECT MAX(seq) FROM events WHERE goal_id = 'goal')",
        "UPDATE goals SET event_head = 'x' WHERE goal_id = 'goal'",
        "UPDATE goals SET event_seq = event_seq - 1 WHERE goal_id = 'goal'",
    ],
)
def test_every_alteration_is_noticed_and_named(store: Store, statement: str) -> None:
    alter(store, statement)
    found = broken(store)
    assert found is not None and found >= 4
    assert broken(store, "other") is None


def test_a_transaction_that_fails_leaves_no_link(store: Store) -> None:
    with store.read() as tx:
        before = tuple(tx.one("goals.head", goal_id="goal"))
    with pytest.raises(RuntimeError), store.write() as tx:
        events.append(tx, "goal", "noted", store.now_ms(), {})
        raise RuntimeError
    with store.read() as tx:
        assert tuple(tx.one("goals.head", goal_id="goal")) == before
    assert broken(store) is None


def test_many_links_in_one_transaction_are_one_chain(store: Store) -> None:
    with store.write() as tx:
        for number in range(7):
            events.append(tx, "goal", "noted", store.now_ms(), {"n": number})
            events.append(tx, "other", "noted", store.now_ms(), {"n": number})
    assert broken(store) is None and broken(store, "other") is None
