"""The ledger: windows equal the recount at every instant, one entry per effect, compare-and-set, voids once."""

from __future__ import annotations

import multiprocessing
import tempfile
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopx.control_plane.errors import ConflictError, NotFoundError, NotNowError, UsageError
from loopx.control_plane.quota.plan import WindowSpend, frees_at
from loopx.store import ledger
from loopx.store.connection import Connection
from loopx.store.store import Store
from tests.store.kit import HandClock, make_goal, open_store, start_turn

WINDOW_MS = 3_600_000
Step = tuple[str, int, int]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("spend"), st.integers(1, 3), st.integers(0, WINDOW_MS)),
        st.tuples(st.just("void"), st.integers(1, 12), st.integers(0, WINDOW_MS // 4)),
        # A clock that goes back is a fact of life; entries still may not.
        st.tuples(st.just("back"), st.integers(0, 0), st.integers(0, WINDOW_MS // 2)),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(steps, st.integers(1, 6))
def test_the_windows_sum_is_the_recount_at_every_instant(history: list[Step], allowed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = HandClock()
        store = open_store(Path(folder), clock)
        make_goal(store, allowed=allowed, window_hours=1)
        _play(store, clock, history)
        with store.read() as tx:
            entries = ledger.page(tx, "goal")
            known = [_seen(entry) for entry in entries]
            latest = max((entry.at_ms for entry in entries), default=clock.now)
            instants = {entry.at_ms + shift for entry in entries for shift in (0, WINDOW_MS - 1, WINDOW_MS)}
            # Asking about the past is not a question that anybody asks: entries are there from the moment they exist.
            for now in sorted(at for at in {*instants, latest, latest + 7} if at >= latest):
                in_sql = ledger.spent_in_window(tx, "goal", WINDOW_MS, now)
                assert in_sql == ledger.recount(tx, "goal", WINDOW_MS, now)
                assert in_sql == sum(one.amount for one in known if one.at_ms > now - WINDOW_MS)
                if in_sql >= allowed:
                    freed = ledger.frees_at(tx, "goal", WINDOW_MS, allowed, now)
                    assert freed == frees_at(known, now_ms=now, window_ms=WINDOW_MS, allowed=allowed)
                else:
                    assert ledger.frees_at(tx, "goal", WINDOW_MS, allowed, now) is None
        store.close()


def _play(store: Store, clock: HandClock, history: list[Step]) -> None:
    for number, (what, amount, ms) in enumerate(history):
        clock.pass_ms(-ms if what == "back" else ms)
        with store.write() as tx:
            if what == "spend":
                ledger.spend(tx, "goal", f"effect-{number}", amount, clock.now)
            elif what == "void":
                try:
                    ledger.void(tx, "goal", amount, f"void-{number}", "a mistake", clock.now)
                except (ConflictError, NotFoundError):
                    continue


def _seen(entry: ledger.LedgerEntry) -> WindowSpend:
    if entry.kind == "spend":
        return WindowSpend(at_ms=entry.at_ms, amount=entry.slots)
    assert entry.voided_at_ms is not None
    return WindowSpend(at_ms=entry.voided_at_ms, amount=-entry.slots)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(tmp_path)
    make_goal(made, allowed=2)
    return made


def spend(
    store: Store,
    effect: str,
    *,
    turn_key: str | None = None,
    expected_index: int | None = None,
    written_back: bool = True,
    reserved: bool = True,
) -> ledger.Appended:
    with store.write() as tx:
        return ledger.spend(
            tx,
            "goal",
            effect,
            1,
            store.now_ms(),
            turn_key=turn_key,
            expected_index=expected_index,
            written_back=written_back,
            reserved=reserved,
        )


def test_a_repeat_returns_the_first_receipt_and_appends_nothing(store: Store) -> None:
    first = spend(store, "t/quota_spend", turn_key="t")
    again = spend(store, "t/quota_spend", turn_key="t", expected_index=99)
    assert (again.entry, first.replayed, again.replayed) == (first.entry, False, True)
    with store.read() as tx:
        assert ledger.spent_in_window(tx, "goal", WINDOW_MS, store.now_ms()) == 1


def test_a_moved_run_index_is_a_conflict_that_appends_nothing(store: Store) -> None:
    spend(store, "one", expected_index=0)
    with pytest.raises(ConflictError) as refused:
        spend(store, "two", expected_index=0)
    assert refused.value.code == "spend_conflict"
    assert refused.value.data == {"run_index": 1, "expected": 0}
    with store.read() as tx:
        assert [entry.effect_ref for entry in ledger.page(tx, "goal")] == ["one"]


def test_an_effect_of_another_goal_is_no_replay(store: Store) -> None:
    make_goal(store, "other")
    spend(store, "one")
    with store.write() as tx, pytest.raises(ConflictError) as refused:
        ledger.spend(tx, "other", "one", 1, store.now_ms())
    assert refused.value.code == "effect_of_another"


def test_a_spend_without_a_writeback_is_refused(store: Store) -> None:
    with pytest.raises(UsageError) as refused:
        spend(store, "one", written_back=False)
    assert refused.value.code == "spend_refused"
    assert refused.value.data == {"refusal": "not_written_back"}


def test_a_spend_without_a_reservation_must_fit_beside_the_reserved(store: Store) -> None:
    spend(store, "one")
    with store.read() as tx:
        todo = tx.one("todos.ready", goal_id="goal", agent_id="loopx")
    assert todo is not None
    start_turn(store, "goal", todo["todo_id"])
    with pytest.raises(NotNowError) as refused:
        spend(store, "two", reserved=False)
    assert refused.value.code == "allocation_exhausted"
    # The turn itself holds its slot since it started.
    assert not spend(store, "two").replayed


def test_a_void_takes_one_spend_off_once_and_says_why(store: Store) -> None:
    entry = spend(store, "one").entry
    with store.write() as tx:
        first = ledger.void(tx, "goal", entry.run_index, "v1", " wrong goal ", store.now_ms())
        again = ledger.void(tx, "goal", entry.run_index, "v1", "wrong goal", store.now_ms())
        assert (again.entry, again.replayed, first.entry.reason) == (first.entry, True, "wrong goal")
        for effect, index, code in (("v2", 1, "already_voided"), ("v3", 2, "not_a_spend"), ("v4", 9, None)):
            with pytest.raises(NotFoundError if code is None else ConflictError) as refused:
                ledger.void(tx, "goal", index, effect, "again", store.now_ms())
            assert refused.value.code == (code or "ledger_entry_unknown")
        with pytest.raises(UsageError):
            ledger.void(tx, "goal", 1, "v5", "  ", store.now_ms())
        assert ledger.spent_in_window(tx, "goal", WINDOW_MS, store.now_ms()) == 0
        assert tx.number("ledger.total", goal_id="goal") == 0


def test_the_live_spend_of_a_turn_is_the_one_that_no_void_takes_off(store: Store) -> None:
    first = spend(store, "one", turn_key="t")
    with store.write() as tx:
        assert ledger.live_spend_of_turn(tx, "t") == first.entry
        ledger.void(tx, "goal", first.entry.run_index, "v", "mistake", store.now_ms())
        assert ledger.live_spend_of_turn(tx, "t") is None
    second = spend(store, "two", turn_key="t", reserved=False)
    with store.read() as tx:
        assert ledger.live_spend_of_turn(tx, "t") == second.entry


def _spend_in_a_process(path: str, effect: str, index: int | None, gate: Barrier, out: Queue) -> None:
    gate.wait()
    connection = Connection(path)
    try:
        with connection.write() as tx:
            done = ledger.spend(tx, "goal", effect, 1, 1_800_000_000_000, expected_index=index)
        out.put("replayed" if done.replayed else "appended")
    except ConflictError as error:
        out.put(error.code)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("effects", "index", "others"),
    [(["same"] * 8, None, "replayed"), ([f"own-{number}" for number in range(8)], 0, "spend_conflict")],
)
def test_of_eight_spends_at_once_one_lands_and_the_sum_is_right(
    store: Store, effects: list[str], index: int | None, others: str
) -> None:
    context = multiprocessing.get_context("fork")
    gate, out = context.Barrier(8), context.Queue()
    workers = [
        context.Process(target=_spend_in_a_process, args=(store.path, effect, index, gate, out)) for effect in effects
    ]
    for worker in workers:
        worker.start()
    said = sorted(out.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert said == sorted(["appended", *[others] * 7])
    with store.read() as tx:
        assert tx.number("ledger.total", goal_id="goal") == 1
        assert len(ledger.page(tx, "goal")) == 1
