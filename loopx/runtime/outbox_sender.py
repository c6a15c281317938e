"""Sends what the outbox holds: at least once, with its key, ever more slowly when it fails, and never in a run's way.

A notification is first addressed (quiet hours, debounce, which channels), which makes one delivery per channel with a
key and a back-off of its own, so that a dead channel never makes a living one speak twice. Any number of senders may
work on one store. It decides nothing about goals.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

import msgspec

from loopx.control_plane.errors import LoopXError
from loopx.hosts import redact
from loopx.runtime import notifications
from loopx.runtime.notifications import Message, Settings, Undelivered
from loopx.runtime.project import Project
from loopx.store import outbox
from loopx.store.connection import Tx
from loopx.store.outbox import NOTIFICATION, OutboxItem
from loopx.store.store import Store

DELIVERY = "delivery"
ESCALATION = "escalation"
HOLD_MS = 120_000
"""How long one sender has an item to itself; if it dies meanwhile, another one sends it after that."""
ESCALATIONS = 3
_BATCH = 20
_MOST = 500
_ALSO = 5

Words = Callable[[Message], tuple[str, str]]
"""Title and text of a message, for people."""


class _Payload(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded with a notification."""

    what: str
    goal_id: str
    at_ms: int
    data: msgspec.Raw = msgspec.Raw(b"{}")


class _Addressed(msgspec.Struct, frozen=True, kw_only=True):
    """One message for one channel."""

    channel_id: str
    message: Message


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    """Which unanswered question is told again, and for the how manieth time."""

    gate_id: str
    attempt: int = 1


class _GateData(msgspec.Struct, frozen=True, kw_only=True):
    gate_id: str = ""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of sending did. `next_at_ms`: when there is something to do again."""

    delivered: int = 0
    failed: int = 0
    held: int = 0
    next_at_ms: int | None = None


class Sender:
    """Sends for one project."""

    def __init__(self, store: Store, project: Project, words: Words, env: Mapping[str, str]) -> None:
        self._store = store
        self._project = project
        self._words = words
        self._env = env
        self._settings: dict[str, Settings | None] = {}
        self._delivered = 0
        self._failed = 0
        self._held = 0

    def send_due(self) -> Sent:
        """Send everything that is due now; failures are put off, none raises."""
        for _ in range(_MOST // _BATCH):
            with self._store.read() as tx:
                items = outbox.due(tx, self._store.now_ms(), _BATCH)
            if not items:
                break
            for item in items:
                if self._take(item):
                    self._handle(item)
        with self._store.read() as tx:
            next_at = tx.number("outbox.next_at") or None
        return Sent(delivered=self._delivered, failed=self._failed, held=self._held, next_at_ms=next_at)

    def _take(self, item: OutboxItem) -> bool:
        until = self._store.now_ms() + HOLD_MS
        with self._store.write() as tx:
            return outbox.take(tx, item, until)

    def _handle(self, item: OutboxItem) -> None:
        try:
            if item.kind == DELIVERY:
                self._deliver(item)
            elif item.kind == ESCALATION:
                self._escalate(item)
            else:
                self._address(item)
        except (LoopXError, msgspec.DecodeError) as error:
            self._put_off(item, str(error))

    def _put_off(self, item: OutboxItem, why: str) -> None:
        self._failed += 1
        with self._store.write() as tx:
            outbox.failed(tx, item, redact.redact(why), self._store.now_ms())

    def _of(self, goal_id: str) -> Settings | None:
        if goal_id not in self._settings:
            self._settings[goal_id] = notifications.settings_of(self._store, self._project, goal_id)
        return self._settings[goal_id]

    # -- addressing ------------------------------------------------------------------------------------------------

    def _address(self, item: OutboxItem) -> None:
        """Turn a recorded event into one delivery per channel, or hold it back for now."""
        payload = msgspec.json.decode(item.payload, type=_Payload)
        settings = self._of(item.goal_id)
        now = self._store.now_ms()
        if settings is None or not settings.channels or payload.what not in settings.events:
            with self._store.write() as tx:
                outbox.drop(tx, item.outbox_id, "not_wanted")
            return
        until = None if payload.what in settings.urgent else notifications.quiet_until(settings, now)
        until = until or self._debounced(settings, item, payload.what, now)
        with self._store.write() as tx:
            if until is not None:
                self._held += 1
                outbox.hold(tx, item.outbox_id, until)
                return
            merged = self._same_kind(tx, item, payload.what, now)
            self._spread(tx, settings, item, payload, merged, now)

    def _debounced(self, settings: Settings, item: OutboxItem, what: str, now_ms: int) -> int | None:
        """Until when this one waits because one of its kind just went out."""
        window = settings.debounce_s * 1000
        if window <= 0 or what == "test":
            return None
        with self._store.read() as tx:
            recent = outbox.sent_since(tx, item.goal_id, NOTIFICATION, now_ms - window)
        instants = [at for at, other in recent if msgspec.json.decode(other.payload, type=_Payload).what == what]
        return max(instants) + window if instants else None

    def _same_kind(self, tx: Tx, item: OutboxItem, what: str, now_ms: int) -> tuple[_Payload, ...]:
        """What else of the same goal and kind waits: one message stands for them all."""
        found: list[_Payload] = []
        for other in outbox.pending_of(tx, item.goal_id, NOTIFICATION):
            if other.outbox_id == item.outbox_id or other.next_at_ms > now_ms:
                continue
            payload = msgspec.json.decode(other.payload, type=_Payload)
            if payload.what == what:
                outbox.drop(tx, other.outbox_id, f"merged:{item.effect_key}")
                found.append(payload)
        return tuple(found)

    def _spread(
        self,
        tx: Tx,
        settings: Settings,
        item: OutboxItem,
        payload: _Payload,
        merged: tuple[_Payload, ...],
        now_ms: int,
    ) -> None:
        message = Message(
            key=item.effect_key,
            what=payload.what,
            goal_id=payload.goal_id,
            state=notifications.STATE_OF.get(payload.what, "working"),
            at_ms=payload.at_ms,
            data=payload.data,
            more=len(merged),
            also=tuple(one.data for one in merged[:_ALSO]),
        )
        title, text = self._words(message)
        message = msgspec.structs.replace(message, title=title, text=text)
        wanted = settings.escalation if payload.what == "gate_unanswered" else settings.channels
        for channel in wanted:
            name = notifications.channel_id(channel)
            body = msgspec.json.encode(_Addressed(channel_id=name, message=message)).decode()
            outbox.put(tx, item.goal_id, f"{item.effect_key}@{name}", DELIVERY, body, now_ms)
        if payload.what == "gate_asked" and settings.escalate_after_min is not None:
            for one in (payload, *merged):
                gate_id = msgspec.json.decode(one.data, type=_GateData).gate_id
                self._schedule(tx, item.goal_id, _Question(gate_id=gate_id), settings, now_ms)
        outbox.sent(tx, item.outbox_id, now_ms)

    # -- escalating ------------------------------------------------------------------------------------------------

    def _schedule(self, tx: Tx, goal_id: str, question: _Question, settings: Settings, now_ms: int) -> None:
        """Look again later, each time after twice as long."""
        minutes = settings.escalate_after_min or 0
        at_ms = now_ms + minutes * 60_000 * 2 ** (question.attempt - 1)
        key = f"gate:{question.gate_id}:look:{question.attempt}"
        outbox.put(tx, goal_id, key, ESCALATION, msgspec.json.encode(question).decode(), now_ms, next_at_ms=at_ms)

    def _escalate(self, item: OutboxItem) -> None:
        question = msgspec.json.decode(item.payload, type=_Question)
        settings = self._of(item.goal_id)
        now = self._store.now_ms()
        with self._store.write() as tx:
            row = tx.one("gates.get", gate_id=question.gate_id)
            if row is not None and row["status"] == "open" and settings is not None:
                data = {"gate_id": question.gate_id, "question": row["question"], "since_ms": row["created_at_ms"]}
                key = f"gate:{question.gate_id}:unanswered:{question.attempt}"
                outbox.notify(tx, item.goal_id, key, "gate_unanswered", data, now)
                if question.attempt < ESCALATIONS:
                    following = msgspec.structs.replace(question, attempt=question.attempt + 1)
                    self._schedule(tx, item.goal_id, following, settings, now)
            outbox.sent(tx, item.outbox_id, now)

    # -- delivering ------------------------------------------------------------------------------------------------

    def _deliver(self, item: OutboxItem) -> None:
        addressed = msgspec.json.decode(item.payload, type=_Addressed)
        settings = self._of(item.goal_id)
        channels = (*settings.channels, *settings.escalation) if settings is not None else ()
        channel = next((one for one in channels if notifications.channel_id(one) == addressed.channel_id), None)
        if channel is None:
            with self._store.write() as tx:
                outbox.drop(tx, item.outbox_id, "channel_removed")
            return
        try:
            notifications.deliver(channel, addressed.message, self._env)
        except Undelivered as error:
            self._put_off(item, str(error))
            return
        self._delivered += 1
        with self._store.write() as tx:
            outbox.sent(tx, item.outbox_id, self._store.now_ms())


def flush(store: Store, project: Project, env: Mapping[str, str]) -> bool:
    """See to it that what is due gets sent, by a process of its own: nothing waits for it, and nothing fails with it.

    True when a sender was started. Where nobody is to be told, what is due is filed away.
    """
    with contextlib.suppress(LoopXError, OSError):
        with store.read() as tx:
            due = outbox.due(tx, store.now_ms(), 1)
        if not due:
            return False
        if not notifications.anybody(project):
            with store.write() as tx:
                tx.run("outbox.drop_due", now_ms=store.now_ms(), reason="nobody_to_tell")
            return False
        _spawn(store, project, env)
        return True
    return False


def _spawn(store: Store, project: Project, env: Mapping[str, str]) -> None:
    kept = {name: value for name, value in env.items() if name not in ("LOOPX_TURN_TOKEN", "LOOPX_TURN_KEY")}
    kept["LOOPX_STATE_DIR"] = os.path.dirname(os.path.dirname(project.state_dir))
    subprocess.Popen(
        [sys.executable, "-m", "loopx", "-q", "--project", project.root, "--database", store.path, "notify", "send"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=kept,
        cwd=project.root,
        start_new_session=True,
    )
