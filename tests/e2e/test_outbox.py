"""The outbox: nothing is lost, nothing is told twice to a living channel, and nothing waits for a dead one."""

from __future__ import annotations

import datetime
import json
import threading
import zoneinfo
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.errors import UsageError
from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import GateKind
from loopx.presentation.renderers.notices import words
from loopx.runtime import after_run, notifications, outbox_sender
from loopx.runtime.notifications import Settings, quiet_until
from loopx.runtime.outbox_sender import Sender, Sent
from loopx.runtime.session import Session
from loopx.store import gates, outbox
from loopx.testing.leaks import LeakKind
from tests.e2e import services_kit as kit

pytestmark = pytest.mark.leaves(
    LeakKind.OPEN_TURN, LeakKind.LEASE_OF_NOBODY, reason="turns are held open, as if a host was at work"
)
MINUTE = 60_000


@pytest.fixture
def world(tmp_path: Path) -> kit.World:
    return kit.World(tmp_path, {"LOOPX_CONFIG_DIR": str(tmp_path / "config")})


class SetClock:
    """A clock that goes when it is told."""

    def __init__(self) -> None:
        self.wall = 1_780_000_000_000

    def now_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.wall


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def session(world: kit.World, clock: SetClock) -> Iterator[Session]:
    with world.session(clock=clock) as opened, kit.environment(LOOPX_CONFIG_DIR=world.env["LOOPX_CONFIG_DIR"]):
        yield opened


class Listener(ThreadingHTTPServer):
    """A webhook that writes down what it gets, and answers as it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Listener

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(json.loads(body))
        self.server.keys.append(self.headers["Idempotency-Key"])
        self.send_response(self.server.status)
        self.end_headers()


@pytest.fixture
def listener() -> Iterator[Listener]:
    server = Listener()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class Desk:
    """A goal, the settings of its project, and a sender."""

    def __init__(self, world: kit.World, session: Session, clock: SetClock, settings: str) -> None:
        self.world = world
        self.session = session
        self.store = session.store
        self.clock = clock
        world.write("loopx.toml", f"[notifications]\n{settings}\n")
        world.commit("settings")
        self.goal = kit.goal(session)
        self.env = dict(world.env)

    def notify(self, what: str = "run_stopped", key: str = "k1", **data: object) -> None:
        with self.store.write() as tx:
            outbox.notify(tx, self.goal.goal_id, key, what, data, self.clock.now_ms())

    def ask(self, question: str = "Blue?", key: str = "blue") -> str:
        draft = GateDraft(kind=GateKind.QUESTION, question=question, dedupe_key=key)
        with self.store.write() as tx:
            return gates.ask(tx, self.goal.goal_id, self.store.ids.new("g"), draft, self.clock.now_ms())

    def send(self) -> Sent:
        return Sender(self.store, self.session.project, words, self.env).send_due()

    def rows(self, kind: str) -> list[Any]:
        with self.store.read() as tx:
            return [row for row in tx.all("outbox.page", after="", limit=500) if row["kind"] == kind]


# -- delivering ----------------------------------------------------------------------------------------------------


def test_a_question_reaches_the_webhook_with_its_key(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    desk = Desk(world, session, clock, f'webhook = "{listener.url}"')
    gate_id = desk.ask("Drop v1?")
    assert desk.send().delivered == 1
    (got,) = listener.got
    assert (got["what"], got["goal_id"], got["state"]) == ("gate_asked", desk.goal.goal_id, "waiting_person")
    assert got["data"]["gate_id"] == gate_id
    assert "Drop v1?" in got["text"] and f"loopx gate answer {gate_id}" in got["text"]
    assert listener.keys == [f"gate:{gate_id}"] == [got["key"]]
    assert desk.send() == Sent(next_at_ms=None), "nothing is told twice"


def test_a_command_hears_it_on_its_standard_input(world: kit.World, session: Session, clock: SetClock) -> None:
    out = world.folder / "heard"
    desk = Desk(world, session, clock, f'command = ["sh", "-c", "cat > {out}; echo $LOOPX_NOTIFY_TITLE >> {out}"]')
    desk.notify(reason="turn_limit")
    assert desk.send().delivered == 1
    first, title = out.read_text().rsplit("}", 1)
    assert json.loads(first + "}")["what"] == "run_stopped"
    assert title.strip() == f"{desk.goal.goal_id}: stopped"


def test_apprise_carries_it(world: kit.World, session: Session, clock: SetClock, listener: Listener) -> None:
    """Apprise's own JSON service against the listener: the real library, a real request."""
    address = listener.url.replace("http://", "json://")
    desk = Desk(world, session, clock, f'urls = ["{address}"]')
    desk.notify(reason="turn_limit")
    assert desk.send().delivered == 1
    assert listener.got[0]["title"] == f"{desk.goal.goal_id}: stopped"


def test_a_dead_channel_is_tried_again_and_a_living_one_hears_it_once(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    out = world.folder / "count"
    desk = Desk(
        world, session, clock, f'webhook = "{listener.url}"\ncommand = ["sh", "-c", "cat >/dev/null; echo x >> {out}"]'
    )
    listener.status = 503
    desk.notify()
    assert (desk.send().delivered, out.read_text()) == (1, "x\n")
    waits = []
    for _ in range(4):
        with desk.store.read() as tx:
            next_at = tx.number("outbox.next_at")
        waits.append(next_at - clock.wall)
        clock.wall = next_at
        assert desk.send().failed == 1
    assert waits == sorted(waits) and waits[0] < waits[-1]
    listener.status = 200
    clock.wall += 24 * 60 * MINUTE
    assert desk.send().delivered == 1
    assert set(listener.keys) == {"k1"}, "each try carries the same key, so that the receiver can tell"
    assert out.read_text() == "x\n"


def test_what_never_gets_through_is_kept_and_given_up(world: kit.World, session: Session, clock: SetClock) -> None:
    desk = Desk(world, session, clock, 'command = ["false"]')
    desk.notify()
    for _ in range(outbox.MAX_ATTEMPTS + 3):
        desk.send()
        clock.wall += 24 * 60 * MINUTE
    (row,) = desk.rows(outbox_sender.DELIVERY)
    assert (row["status"], row["attempts"]) == ("dead", outbox.MAX_ATTEMPTS)
    assert "ended with 1" in row["last_error"]


def test_a_sender_that_dies_loses_nothing(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    """It took the item and was killed before it sent; another sends it when its time is over."""
    desk = Desk(world, session, clock, f'webhook = "{listener.url}"')
    desk.notify()
    with desk.store.write() as tx:
        (item,) = outbox.due(tx, clock.wall)
        assert outbox.take(tx, item, clock.wall + outbox_sender.HOLD_MS)
    with desk.store.write() as tx:
        assert not outbox.take(tx, item, clock.wall + outbox_sender.HOLD_MS), "one sender at a time"
    assert desk.send().delivered == 0
    clock.wall += outbox_sender.HOLD_MS
    assert desk.send().delivered == 1


def test_two_senders_at_once_tell_it_once(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    desk = Desk(world, session, clock, f'webhook = "{listener.url}"\ndebounce_s = 0')
    for number in range(10):
        desk.notify(what="gate_asked" if number % 2 else "run_failed", key=f"k{number}")
    both = [world.start("notify", "send") for _ in range(2)]
    for process in both:
        process.communicate(timeout=60)
    assert [process.returncode for process in both] == [0, 0], world.errors
    assert len(listener.keys) == len(set(listener.keys))
    assert sum(1 + got["more"] for got in listener.got) == 10, "none is lost: those left out are counted"


# -- addressing ----------------------------------------------------------------------------------------------------


def test_the_same_key_is_told_once(world: kit.World, session: Session, clock: SetClock, listener: Listener) -> None:
    desk = Desk(world, session, clock, f'webhook = "{listener.url}"')
    for _ in range(3):
        desk.ask("Drop v1?", key="same")
        desk.send()
    assert len(listener.got) == 1


def test_a_burst_becomes_one_now_and_one_later(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    desk = Desk(world, session, clock, f'webhook = "{listener.url}"\ndebounce_s = 60')
    desk.notify(key="first")
    assert desk.send().delivered == 1, "the first one is told at once"
    for number in range(5):
        desk.notify(key=f"more{number}")
    assert desk.send().held == 5
    clock.wall += 61_000
    desk.send()
    assert [got["more"] for got in listener.got] == [0, 4]
    assert len(listener.got[1]["also"]) == 4


def test_other_kinds_and_other_goals_are_not_held_back(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    desk = Desk(world, session, clock, f'webhook = "{listener.url}"\ndebounce_s = 60')
    desk.notify(key="a")
    desk.send()
    desk.notify(what="run_failed", key="b")
    assert desk.send().delivered == 1


def test_only_what_is_wanted_is_told(world: kit.World, session: Session, clock: SetClock, listener: Listener) -> None:
    desk = Desk(world, session, clock, f'webhook = "{listener.url}"\nevents = ["goal_completed"]')
    desk.ask()
    assert desk.send().delivered == 0
    (row,) = desk.rows(outbox.NOTIFICATION)
    assert (row["status"], row["last_error"]) == ("dead", "not_wanted")


def test_quiet_hours_hold_it_until_they_end_but_for_what_is_urgent(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    night = datetime.datetime(2026, 7, 1, 23, 30, tzinfo=zone)
    clock.wall = round(night.timestamp() * 1000)
    desk = Desk(
        world, session, clock, f'webhook = "{listener.url}"\nquiet_hours = "22:00-07:00"\nzone = "Europe/Berlin"'
    )
    desk.ask()
    desk.notify(what="spike", key="s", latest=9, median=1, unit="tokens")
    assert desk.send().delivered == 1
    assert listener.got[0]["what"] == "spike"
    morning = datetime.datetime(2026, 7, 2, 7, 0, tzinfo=zone)
    with desk.store.read() as tx:
        assert tx.number("outbox.next_at") == round(morning.timestamp() * 1000)
    clock.wall = round(morning.timestamp() * 1000)
    assert desk.send().delivered == 1


@pytest.mark.parametrize(
    ("hours", "at", "ends"),
    [
        ("22:00-07:00", (2026, 7, 1, 21, 59), None),
        ("22:00-07:00", (2026, 7, 1, 22, 0), (2026, 7, 2, 7, 0)),
        ("22:00-07:00", (2026, 7, 2, 6, 59), (2026, 7, 2, 7, 0)),
        ("22:00-07:00", (2026, 7, 2, 7, 0), None),
        ("12:00-13:00", (2026, 7, 1, 12, 30), (2026, 7, 1, 13, 0)),
        ("12:00-13:00", (2026, 7, 1, 13, 0), None),
        # The night on which the clocks go forward is an hour shorter, and still ends at seven.
        ("22:00-07:00", (2026, 3, 29, 1, 30), (2026, 3, 29, 7, 0)),
        ("22:00-07:00", (2026, 10, 25, 1, 30), (2026, 10, 25, 7, 0)),
    ],
)
def test_quiet_hours_by_local_time(hours: str, at: tuple[int, ...], ends: tuple[int, ...] | None) -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")

    def instant(parts: tuple[int, ...]) -> int:
        return round(datetime.datetime(*parts, tzinfo=zone).timestamp() * 1000)  # type: ignore[misc, arg-type]

    settings = Settings(quiet_hours=hours, zone="Europe/Berlin")
    assert quiet_until(settings, instant(at)) == (None if ends is None else instant(ends))


def test_an_unanswered_question_is_told_again_and_an_answered_one_is_not(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    out = world.folder / "boss"
    desk = Desk(
        world,
        session,
        clock,
        f'command = ["sh", "-c", "cat >/dev/null; echo $LOOPX_NOTIFY_WHAT >> {out}"]\n'
        f'escalate_after_min = 30\nescalate_to = ["{listener.url}"]',
    )
    first, second = desk.ask("One?", "one"), desk.ask("Two?", "two")
    desk.send()
    assert out.read_text() == "gate_asked\n", "two at once are one message"
    with desk.store.write() as tx:
        gates.answer(tx, gates.get(tx, first), "yes", "ada", clock.wall)
    for _ in range(8):
        clock.wall += 61 * MINUTE
        desk.send()
    assert {got["data"]["gate_id"] for got in listener.got} == {second}
    assert len(listener.got) == outbox_sender.ESCALATIONS, "not for ever"
    assert out.read_text().count("unanswered") == 0, "escalation goes where it was said to go"


# -- trust and settings --------------------------------------------------------------------------------------------


def test_what_an_agent_writes_into_the_file_is_never_run(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    """In the middle of a turn the agent names itself a command: the person's own settings stay in force."""
    out = world.folder / "evil"
    desk = Desk(world, session, clock, f'webhook = "{listener.url}"')
    kit.take_baseline(session, desk.goal.goal_id)
    kit.open_turn(session, desk.goal.goal_id)
    world.write("loopx.toml", f'[notifications]\ncommand = ["sh", "-c", "echo x > {out}"]\n')
    desk.ask()
    assert desk.send().delivered == 1
    assert not out.exists()
    assert len(listener.got) == 1


def test_a_persons_own_settings_serve_projects_without_any(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    folder = Path(world.env["LOOPX_CONFIG_DIR"])
    folder.mkdir()
    (folder / "config.toml").write_text(f'[notifications]\nwebhook = "{listener.url}"\n')
    desk = Desk(world, session, clock, "")
    desk.notify()
    assert desk.send().delivered == 1


def test_a_credential_comes_from_the_environment_and_is_not_stored(
    world: kit.World, session: Session, clock: SetClock, listener: Listener
) -> None:
    desk = Desk(world, session, clock, f'webhook = "{listener.url}?key=${{HOOK_KEY}}"')
    desk.notify()
    assert desk.send().failed == 1
    (row,) = desk.rows(outbox_sender.DELIVERY)
    assert "HOOK_KEY is not set" in row["last_error"]
    desk.env["HOOK_KEY"] = "hunter2"
    clock.wall += MINUTE
    assert desk.send().delivered == 1
    stored = Path(session.store.path).read_bytes() + Path(f"{session.store.path}-wal").read_bytes()
    assert b"hunter2" not in stored and listener.url.encode() not in stored


def test_a_webhook_in_the_clear_is_refused(world: kit.World, session: Session, clock: SetClock) -> None:
    desk = Desk(world, session, clock, 'webhook = "http://example.org/hook"')
    desk.notify()
    desk.send()
    (row,) = desk.rows(outbox_sender.DELIVERY)
    assert "https" in row["last_error"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ('events = ["gate_askd"]', "gate_askd"),
        ('quiet_hours = "late"', "quiet_hours"),
        ('zone = "Europe/Atlantis"', "zone"),
        ("debounce_s = -1", "debounce_s"),
        ("escalate_after_min = 0", "escalate_after_min"),
        ('webhok = "x"', "webhok"),
    ],
)
def test_bad_settings_name_the_field(settings: str, names: str) -> None:
    with pytest.raises(UsageError) as caught:
        notifications.parse(f"[notifications]\n{settings}\n".encode())
    assert names in caught.value.message


# -- at event time, and in nobody's way ----------------------------------------------------------------------------


@pytest.fixture
def here(world: kit.World) -> Iterator[Session]:
    with world.session() as opened:
        yield opened


def _wait_for(listener: Listener, world: kit.World) -> None:
    """Until the sender that a run started has spoken: it is nobody's child any more."""
    import select

    poll = select.poll()
    while not listener.got:
        poll.poll(20)


def test_a_run_tells_of_its_end_by_itself(world: kit.World, here: Session, listener: Listener) -> None:
    """`loopx run` to the end of a goal: the person is told, although no worker runs and nothing was configured else."""
    world.write("loopx.toml", f'[notifications]\nwebhook = "{listener.url}"\n')
    world.commit("settings")
    agent = world.agent('import sys\nsys.stdin.read()\nopen("done.txt", "w").write("x")\n')
    goal = kit.goal(here, engine=agent)
    done = world.loopx("run", goal.goal_id)
    assert done.returncode == 0, done.stdout + done.stderr
    _wait_for(listener, world)
    assert listener.got[0]["what"] == "goal_completed"


def test_a_run_is_not_kept_waiting_by_a_dead_channel(world: kit.World, here: Session) -> None:
    """The command never ends; the run does, and its exit says what the goal came to."""
    world.write("loopx.toml", '[notifications]\ncommand = ["sleep", "20"]\n')
    world.commit("settings")
    agent = world.agent('import sys\nsys.stdin.read()\nopen("done.txt", "w").write("x")\n')
    goal = kit.goal(here, engine=agent)
    assert world.loopx("run", goal.goal_id).returncode == 0
    with here.store.read() as tx:
        assert tx.one("outbox.next_at") is not None


def test_where_nobody_is_to_be_told_nothing_piles_up(world: kit.World, here: Session) -> None:
    goal = kit.goal(here)
    with here.store.write() as tx:
        outbox.notify(tx, goal.goal_id, "k", "run_stopped", {}, here.store.now_ms())
    assert outbox_sender.flush(here.store, here.project, world.env) is False
    with here.store.read() as tx:
        assert outbox.due(tx, here.store.now_ms()) == ()


def test_an_unusual_use_is_told(world: kit.World, session: Session, clock: SetClock, listener: Listener) -> None:
    from loopx.control_plane.quota.policy import BudgetUnit
    from loopx.store import meters

    desk = Desk(world, session, clock, f'webhook = "{listener.url}"')
    with desk.store.write() as tx:
        for number in range(6):
            meters.record(tx, desk.goal.goal_id, f"run{number}", {BudgetUnit.TOKENS: 10_000}, clock.wall)
    with desk.store.write() as tx:
        after_run._notice_spike(tx, desk.goal.goal_id, clock.wall)
        meters.record(tx, desk.goal.goal_id, "run7", {BudgetUnit.TOKENS: 90_000}, clock.wall)
        after_run._notice_spike(tx, desk.goal.goal_id, clock.wall)
        after_run._notice_spike(tx, desk.goal.goal_id, clock.wall)
    desk.send()
    assert [got["data"]["latest"] for got in listener.got] == [90_000]


def test_a_test_message_goes_to_every_channel(world: kit.World, here: Session, listener: Listener) -> None:
    world.write("loopx.toml", f'[notifications]\nwebhook = "{listener.url}"\nquiet_hours = "00:00-23:59"\n')
    done = world.loopx("notify", "test", "--json")
    assert json.loads(done.stdout)["delivered"] == 1, done.stderr
    assert listener.got[0]["what"] == "test"
    bare = world.loopx("notify", "list", "--json")
    assert {item["status"] for item in json.loads(bare.stdout)["items"]} == {"sent"}
