"""Folds one host's stream into events and a summary: the part that every adapter's parser shares.

An adapter recognises its CLI's lines and calls the verbs below; this class counts, remembers the last word and notices
repeated actions. It judges nothing: `ends.classify` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopx.hosts import jsonline, phrases
from loopx.hosts import usage as usages
from loopx.hosts.protocol import HostEndKind, HostEvent, HostEventKind, LaunchRequest, StreamSummary, Usage

Events = Sequence[HostEvent]
NOTHING: Events = ()


class Fold:
    """The state of one stream. Texts are capped; `now_ms` anchors reset times; `zone` is the zone the CLI speaks in."""

    def __init__(self, request: LaunchRequest, now_ms: int, zone: str | None = None) -> None:
        self.request = request
        self.now_ms = now_ms
        self.zone = zone
        self.session_id: str | None = None
        self.model: str | None = None
        self.replaced = False
        """Another session than the one to be resumed was opened."""
        self.final_text = ""
        self.terminal_seen = False
        self.is_error = False
        self.tool_calls = 0
        self.file_changes = 0
        self.denials = 0
        self.usage = Usage()
        self.usage_is_running_total = False
        self.reset_at_ms: int | None = None
        self.error_kind: HostEndKind | None = None
        self.error_text = ""
        self.error_code = ""
        self.http_status: int | None = None
        self._last_action = ""
        self._run = 0
        self._longest_run = 0

    def session(self, session_id: str, model: str = "") -> Events:
        """The host named its session (and perhaps its model)."""
        self.model = model or self.model
        if not session_id:
            return NOTHING
        known = session_id == self.session_id
        self.session_id = session_id
        wanted = self.request.resume_session
        self.replaced = bool(wanted) and session_id != wanted
        return NOTHING if known else (HostEvent(kind=HostEventKind.SESSION, session_id=session_id),)

    def message(self, text: str) -> Events:
        """The agent said something; the last one is its final text."""
        if not text.strip():
            return NOTHING
        self.final_text = jsonline.clip(text, 16_000)
        return (HostEvent(kind=HostEventKind.MESSAGE, text=jsonline.clip(text)),)

    def tool(self, name: str, arguments: object, text: str = "") -> Events:
        """The agent called a tool. Progress: what was said to be wrong with the provider before is over."""
        self.tool_calls += 1
        action = f"{name} {jsonline.canonical(arguments)}"
        self._run = self._run + 1 if action == self._last_action else 1
        self._last_action = action
        self._longest_run = max(self._longest_run, self._run)
        return (HostEvent(kind=HostEventKind.TOOL_CALL, tool=jsonline.clip(name, 200), text=jsonline.clip(text)),)

    def changed(self, paths: Sequence[str]) -> Events:
        """A file tool changed files."""
        self.file_changes += max(1, len(paths))
        return (HostEvent(kind=HostEventKind.FILE_CHANGE, paths=tuple(jsonline.clip(path) for path in paths[:100])),)

    def denied(self, tool: str, text: str = "") -> Events:
        """The host refused a tool call for want of permission."""
        self.denials += 1
        name = jsonline.clip(tool, 200)
        return (HostEvent(kind=HostEventKind.TOOL_CALL, tool=name, text=jsonline.clip(text), denied=True),)

    def used(self, usage: Usage, *, running_total: bool = False) -> Events:
        """The newest counters of this process (or, for a running total, of the session)."""
        self.usage = usages.merge(self.usage, usage)
        self.usage_is_running_total = running_total
        return (HostEvent(kind=HostEventKind.USAGE, usage=self.usage, running_total=running_total),)

    def limit(self, reset_at_ms: int | None, text: str = "") -> Events:
        """The provider said when a limit resets; whether it is reached is for an error to say."""
        self.reset_at_ms = reset_at_ms if reset_at_ms is not None else self.reset_at_ms
        return (HostEvent(kind=HostEventKind.LIMIT, reset_at_ms=reset_at_ms, text=jsonline.clip(text)),)

    def trouble(
        self, text: str, *, kind: HostEndKind | None = None, code: str = "", status: int | None = None
    ) -> Events:
        """The host reported an error that it may still get over by itself (a retry, a reconnect)."""
        self._blame(text, kind, code, status)
        return (HostEvent(kind=HostEventKind.ERROR, text=jsonline.clip(text), error=self.error_kind),)

    def failed(
        self, text: str, *, kind: HostEndKind | None = None, code: str = "", status: int | None = None
    ) -> Events:
        """The host reported the error that ends its run."""
        self.is_error = True
        self._blame(text, kind, code, status)
        self.error_kind = self.error_kind or HostEndKind.WORKER_ERROR
        event = HostEvent(
            kind=HostEventKind.ERROR,
            text=jsonline.clip(text),
            error=self.error_kind,
            reset_at_ms=self.reset_at_ms,
            fatal=True,
        )
        return (event,)

    def recovered(self) -> None:
        """The model answered again, so an earlier error that was not fatal is history."""
        if not self.is_error:
            self.error_kind, self.error_text, self.error_code, self.http_status = None, "", "", None

    def finished(self, text: str = "") -> Events:
        """The host's terminal event."""
        self.terminal_seen = True
        if text.strip():
            self.final_text = jsonline.clip(text, 16_000)
        return (HostEvent(kind=HostEventKind.RESULT, text=jsonline.clip(text)),)

    def summary(self) -> StreamSummary:
        """Everything the stream said.

        A resume that opened another session and then failed, or did nothing, found its own one dead (B12); when it
        did work, the new session is simply the one to go on with.
        """
        if self.replaced and self._fruitless():
            self.is_error, self.error_kind, self.error_code = True, HostEndKind.SESSION_MISSING, "session_replaced"
        return StreamSummary(
            session_id=self.session_id,
            final_text=self.final_text,
            terminal_seen=self.terminal_seen,
            is_error=self.is_error,
            tool_calls=self.tool_calls,
            file_changes=self.file_changes,
            denials=self.denials,
            usage=self.usage,
            usage_is_running_total=self.usage_is_running_total,
            reset_at_ms=self.reset_at_ms,
            error_kind=self.error_kind,
            error_text=jsonline.clip(self.error_text),
            error_code=self.error_code,
            http_status=self.http_status,
            model=self.model,
            repeated_action=self._longest_run,
        )

    def _fruitless(self) -> bool:
        vague = self.error_kind in (None, HostEndKind.WORKER_ERROR, HostEndKind.UNKNOWN)
        return vague and (self.is_error or not (self.tool_calls or self.file_changes))

    def _blame(self, text: str, kind: HostEndKind | None, code: str, status: int | None) -> None:
        status = status if status is not None else phrases.status_in(text)
        meaning = phrases.of_error(text, status)
        self.error_text = text or self.error_text
        self.http_status = status if status is not None else self.http_status
        self.error_kind = kind or (meaning.kind if meaning else self.error_kind)
        self.error_code = code or (meaning.code if meaning else self.error_code)
        # Its many patterns are compiled when a limit is met, not at every start.
        from loopx.hosts import resets

        reset = resets.parse_reset(text, self.now_ms, self.zone)
        if reset is not None:
            self.reset_at_ms = reset
