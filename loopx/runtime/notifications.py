"""Who is told of what, and how: the `[notifications]` table, and the channels that carry a message.

    [notifications]
    urls = ["ntfy://my-topic", "mailto://${MAIL_LOGIN}@example.org"]   # through apprise, an extra: [notify]
    webhook = "https://example.org/hook"       # JSON, with the key as Idempotency-Key; needs no extra
    command = ["notify-send", "LoopX"]         # JSON on standard input, the words in LOOPX_NOTIFY_TITLE and _TEXT
    events = ["gate_asked", "gate_unanswered", "goal_completed", "run_stopped", "spike", "capability_failed"]
    quiet_hours = "22:00-07:00"                # held back until the end, but for what is `urgent`
    zone = "Europe/Berlin"                     # default: this machine's
    debounce_s = 60                            # more of the same kind within it become one message
    escalate_after_min = 30                    # an unanswered question is told again, to `escalate_to` if given

It delivers one message once and says how that went; when, and whether again, is the outbox sender's.
"""

from __future__ import annotations

import datetime
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from typing import Annotated, assert_never

import msgspec

from loopx.control_plane.canonical import sha256_hex
from loopx.control_plane.errors import UsageError
from loopx.runtime import project_file
from loopx.runtime.project import Project
from loopx.store.store import Store

TABLE = "notifications"
CONFIG_VARIABLE = "LOOPX_CONFIG_DIR"
EVENTS = (
    "gate_asked",
    "gate_unanswered",
    "goal_completed",
    "run_stopped",
    "run_failed",
    "spike",
    "capability_done",
    "capability_failed",
    "test",
)
DEFAULT_EVENTS = tuple(event for event in EVENTS if event != "capability_done")
STATE_OF = {
    "gate_asked": "waiting_person",
    "gate_unanswered": "waiting_person",
    "goal_completed": "done",
    "run_stopped": "stopped",
    "run_failed": "blocked",
}
"""What the goal is doing, for whoever reads the message; anything else leaves it at work."""
WEBHOOK_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 30.0
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LOOPBACK = re.compile(r"http://(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?(?:/|$)")


class Apprise(msgspec.Struct, frozen=True, kw_only=True, tag="apprise"):
    """A service by its apprise address."""

    url: str


class Webhook(msgspec.Struct, frozen=True, kw_only=True, tag="webhook"):
    """An HTTP address that takes JSON."""

    url: str


class Hook(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """A program that takes JSON on its standard input."""

    argv: tuple[str, ...]


Channel = Apprise | Webhook | Hook


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table as it is written."""

    urls: tuple[str, ...] = ()
    webhook: str | tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    events: tuple[str, ...] = DEFAULT_EVENTS
    urgent: tuple[str, ...] = ("spike", "test")
    quiet_hours: str = ""
    zone: str = ""
    debounce_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 60
    escalate_after_min: Annotated[int, msgspec.Meta(ge=1, le=10_080)] | None = None
    escalate_to: tuple[str, ...] = ()

    @property
    def channels(self) -> tuple[Channel, ...]:
        hooks = (self.webhook,) if isinstance(self.webhook, str) else self.webhook
        found: list[Channel] = [Apprise(url=url) for url in self.urls]
        found += [Webhook(url=url) for url in hooks if url]
        if self.command:
            found.append(Hook(argv=self.command))
        return tuple(found)

    @property
    def escalation(self) -> tuple[Channel, ...]:
        """Who hears of an unanswered question."""
        return tuple(_by_address(url) for url in self.escalate_to) or self.channels


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a channel carries. `key` is the same each time the same message is delivered again."""

    key: str
    what: str
    goal_id: str
    state: str
    at_ms: int
    data: msgspec.Raw = msgspec.Raw(b"{}")
    more: int = 0
    """How many of the same kind this one stands for besides."""
    also: tuple[msgspec.Raw, ...] = ()
    """The data of those, the first few."""
    title: str = ""
    text: str = ""


def parse(content: bytes) -> Settings | None:
    """The table of a file; None where it has none. Raises UsageError: `config_malformed`, `config_invalid`."""
    table = project_file.table(content, TABLE)
    if not table:
        return None
    settings = project_file.convert(table, Settings, TABLE)
    for name in (*settings.events, *settings.urgent):
        if name not in EVENTS:
            raise _invalid("events", f"{name!r} is no event", f"events: {', '.join(EVENTS)}")
    if settings.quiet_hours and not _HOURS.fullmatch(settings.quiet_hours):
        raise _invalid("quiet_hours", f"{settings.quiet_hours!r}", "write it as 22:00-07:00")
    _zone(settings)
    return settings


def _invalid(field: str, what: str, hint: str) -> UsageError:
    return UsageError("config_invalid", f"{project_file.NAME}: {TABLE}.{field}: {what}", hint=hint)


def _zone(settings: Settings) -> datetime.tzinfo | None:
    if not settings.zone:
        return None
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(settings.zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise _invalid("zone", f"{settings.zone!r} is no time zone", "for example Europe/Berlin") from error


def user_file() -> str:
    """The person's own settings, for projects that have none: `config.toml` in their configuration folder."""
    folder = os.environ.get(CONFIG_VARIABLE)
    if not folder:
        import platformdirs

        folder = platformdirs.user_config_dir("loopx", appauthor=False)
    return os.path.join(folder, "config.toml")


def settings_of(store: Store, project: Project, goal_id: str | None) -> Settings | None:
    """Who is to be told about this goal: by the project's file as a person wrote it, else by the person's own.

    Raises UsageError: `config_malformed`, `config_invalid`.
    """
    if maybe_addressed(project):
        found = parse(project_file.read(store, project, goal_id).trusted)
        if found is not None:
            return found
    try:
        with open(user_file(), "rb") as file:
            return parse(file.read())
    except OSError:
        return None


def maybe_addressed(project: Project) -> bool:
    """Whether the project's file may name anybody at all; a cheap look that saves the real one."""
    try:
        with open(project_file.path_of(project), "rb") as file:
            return b"notifications" in file.read()
    except OSError:
        return False


def anybody(project: Project) -> bool:
    """Whether there may be anybody to tell."""
    return maybe_addressed(project) or os.path.exists(user_file())


def channel_id(channel: Channel) -> str:
    """Names a channel in the store without its address, which may hold a credential."""
    return sha256_hex([msgspec.json.encode(channel).decode()])[:12]


def quiet_until(settings: Settings, now_ms: int) -> int | None:
    """The end of the quiet hours that hold now; None outside them."""
    match = _HOURS.fullmatch(settings.quiet_hours)
    if match is None:
        return None
    zone = _zone(settings)
    utc = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    now = utc.astimezone(zone)
    start, end = (datetime.time(int(match[at]), int(match[at + 1])) for at in (1, 3))
    at = now.time()
    inside = start <= at < end if start < end else at >= start or at < end
    if not inside:
        return None
    day = now.date() if at < end else now.date() + datetime.timedelta(days=1)
    local = datetime.datetime.combine(day, end)
    ended = local.replace(tzinfo=zone) if zone is not None else local.astimezone()
    return max(now_ms + 1000, round(ended.timestamp() * 1000))


def _by_address(url: str) -> Channel:
    return Webhook(url=url) if url.startswith(("https://", "http://")) else Apprise(url=url)


class Undelivered(Exception):
    """The channel did not take the message; the text says why, without the address."""


def deliver(channel: Channel, message: Message, env: Mapping[str, str]) -> None:
    """Hand one message to one channel. Raises Undelivered."""
    match channel:
        case Webhook():
            _post(_filled(channel.url, env), message)
        case Hook():
            _run(channel.argv, message, env)
        case Apprise():
            _apprise(_filled(channel.url, env), message)
        case _:
            assert_never(channel)


def _filled(url: str, env: Mapping[str, str]) -> str:
    def value(place: re.Match[str]) -> str:
        found = env.get(place[1])
        if not found:
            raise Undelivered(f"the variable {place[1]} is not set")
        return found

    return _VARIABLE.sub(value, url)


def _post(url: str, message: Message) -> None:
    import urllib.error
    import urllib.request

    if not url.startswith("https://") and not _LOOPBACK.match(url):
        raise Undelivered("a webhook needs https (or an address of this machine)")
    request = urllib.request.Request(
        url,
        data=msgspec.json.encode(message),
        headers={
            "Content-Type": "application/json",
            "Idempotency-Key": message.key,
            "User-Agent": "loopx",
        },
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        raise Undelivered(f"the webhook answered {error.code}") from error
    except (OSError, ValueError) as error:
        raise Undelivered(f"the webhook could not be reached: {type(error).__name__}") from error


def _run(argv: tuple[str, ...], message: Message, env: Mapping[str, str]) -> None:
    named = {
        **env,
        "LOOPX_NOTIFY_KEY": message.key,
        "LOOPX_NOTIFY_WHAT": message.what,
        "LOOPX_NOTIFY_GOAL": message.goal_id,
        "LOOPX_NOTIFY_TITLE": message.title,
        "LOOPX_NOTIFY_TEXT": message.text,
    }
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=named,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Undelivered(f"{argv[0]} can't be started: {type(error).__name__}") from error
    try:
        process.communicate(msgspec.json.encode(message), timeout=COMMAND_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise Undelivered(f"{argv[0]} took longer than {COMMAND_TIMEOUT_S:.0f} s") from error
    if process.returncode != 0:
        raise Undelivered(f"{argv[0]} ended with {process.returncode}")


def _apprise(url: str, message: Message) -> None:
    try:
        import apprise
    except ModuleNotFoundError as error:
        raise Undelivered("apprise is not installed: pip install 'loopx-control[notify]'") from error
    service = apprise.Apprise()
    if not service.add(url):
        raise Undelivered("apprise does not know this address")
    if not service.notify(body=message.text, title=message.title):
        raise Undelivered("the service did not take it")
