"""The web page's application: routes, pages, and the few things a person may do. Server-rendered, and of one process.

Thin: it reads views, calls the services that the command line calls, and renders. Who may come in is `access.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from loopx.control_plane.errors import LoopXError, UsageError
from loopx.control_plane.goal import GoalState
from loopx.control_plane.turn_driver.transaction import PHASES
from loopx.presentation.i18n import translate
from loopx.presentation.renderers import page_words, words
from loopx.presentation.web import access as accesses
from loopx.presentation.web import pages
from loopx.presentation.web.access import AUTH, Guard
from loopx.presentation.web.desk import Desk, Notice
from loopx.presentation.web.live import board_events, goal_events
from loopx.runtime import board_view, gate_service, goal_service, turn_views, views
from loopx.runtime.agent_stream import AgentStream, StreamLine
from loopx.store.store import Store

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Act = Callable[[Mapping[str, str]], Notice]
BODY_BYTES = 64 << 10
HOUR_MS = 3_600_000
SPANS: Mapping[str, int] = {"1h": HOUR_MS, "12h": 12 * HOUR_MS, "24h": 24 * HOUR_MS, "7d": 168 * HOUR_MS}
LAST_LOOK = "look"
PAGE = 50
TYPES: Mapping[str, str] = {
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
_STATUS = {2: 400, 3: 404, 10: 409, 11: 409, 12: 409, 15: 409}
"""The HTTP status for an error's exit status; the rest are faults."""
_MOVES: Mapping[str, GoalState] = {
    "pause": GoalState.PAUSED,
    "resume": GoalState.ACTIVE,
    "stop": GoalState.STOPPED,
}


def build(desk: Desk) -> ASGIApp:
    """The guarded application."""
    site = Site(desk)
    app = Starlette(
        routes=[
            Route("/", site.board),
            Route("/goals", site.goals),
            Route("/goals/{goal_id}", site.goal),
            Route("/goals/{goal_id}/report", site.report),
            Route("/goals/{goal_id}/turns/{number:int}", site.turn),
            Route("/goals/{goal_id}/{move:str}", site.move, methods=["POST"]),
            Route("/gates/{gate_id}/answer", site.answer, methods=["POST"]),
            Route("/live/board", site.live_board),
            Route("/live/goals/{goal_id}", site.live_goal),
            Route("/enter", site.ask_token),
            Route("/enter", site.enter, methods=["POST"]),
            Route("/static/{name}", site.static),
        ],
        exception_handlers={LoopXError: site.failed, 404: site.missing},
    )
    return Guard(app, desk.access)


class Site:
    """The handlers. Those without `async` run in a worker thread, where reading the store may take its time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def _page(self, request: Request, name: str, page: str, live_url: str, **values: object) -> HTMLResponse:
        back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        common: dict[str, object] = {
            "live": True,
            "page": page,
            "live_url": live_url,
            "project": self._desk.project,
            "form": self._desk.access.form,
            "back": back.partition("?said=")[0].partition("&said=")[0],
            "said": self._desk.take(request.query_params.get("said", "")),
        }
        return HTMLResponse(pages.render(name, {**common, **values}))

    # Pages

    def board(self, request: Request) -> Response:
        since = request.query_params.get("since", LAST_LOOK)
        with self._desk.session() as session:
            now = session.store.now_ms()
            looked = self._desk.last_look(session.project, now)
            board = board_view.board(session.store, now - SPANS[since] if since in SPANS else looked)
        spans = [(LAST_LOOK, translate("my last look")), *((code, words.span(ms)) for code, ms in SPANS.items())]
        return self._page(
            request, "board.html", "board", "/live/board", board=board, now_ms=now, spans=spans, since=since
        )

    def goals(self, request: Request) -> Response:
        after = request.query_params.get("after", "")
        with self._desk.session() as session:
            now = session.store.now_ms()
            rows = board_view.goals_page(session.store, after=after, limit=PAGE + 1)
            counts = board_view.counts(session.store)
        told = [f"{number} {words.word(words.STATES, state)}" for state, number in counts.items()]
        more = rows[PAGE - 1].goal_id if len(rows) > PAGE else ""
        return self._page(request, "goals.html", "goals", "", rows=rows[:PAGE], after=more, counts=told, now_ms=now)

    def goal(self, request: Request) -> Response:
        goal_id = request.path_params["goal_id"]
        before = _number(request.query_params.get("before"))
        with self._desk.session() as session:
            view = views.goal_view(session.store, goal_id, before=before or 1 << 62)
            stream, number = self._stream(session.store, goal_id) if not before else ((), None)
        live_url = "" if before else f"/live/goals/{goal_id}"
        return self._page(
            request,
            "goal.html",
            "goal",
            live_url,
            view=view,
            stream=stream,
            live_turn=number,
            before=before,
            now_ms=view.now_ms,
            phase_names=PHASES,
        )

    @staticmethod
    def _stream(store: Store, goal_id: str) -> tuple[tuple[StreamLine, ...], int | None]:
        run = views.live_run(store, goal_id)
        if run is None:
            return (), None
        stream = AgentStream(run)
        try:
            lines = stream.read(final=run.ended)
        finally:
            stream.close()
        with store.read() as tx:
            row = tx.one("turns.get", turn_key=run.turn_key)
        return lines, row["number"] if row is not None else None

    def turn(self, request: Request) -> Response:
        goal_id, number = request.path_params["goal_id"], request.path_params["number"]
        with self._desk.session() as session:
            view = turn_views.turn_view(session.store, goal_id, number)
            patch = turn_views.turn_diff(session.store, session.project, goal_id, view.tree_before, view.tree_after)
        live_url = f"/live/goals/{goal_id}?turn={number}" if view.line.open else ""
        return self._page(
            request,
            "turn.html",
            "turn",
            live_url,
            view=view,
            patch=patch,
            goal_id=goal_id,
            now_ms=view.now_ms,
        )

    def report(self, request: Request) -> Response:
        from loopx.presentation.report.page import report_html
        from loopx.runtime.report_view import report_view

        goal_id = request.path_params["goal_id"]
        with self._desk.session() as session:
            text = report_html(report_view(session.store, session.project, goal_id))
        headers = {
            "content-security-policy": REPORT_POLICY,
            "content-disposition": f'attachment; filename="loopx-{goal_id}.html"',
        }
        return HTMLResponse(text, headers=headers)

    # What a person may do

    async def move(self, request: Request) -> Response:
        goal_id, verb = request.path_params["goal_id"], request.path_params["move"]
        if verb not in _MOVES:
            return self.missing(request, LookupError(verb))
        state = _MOVES[verb]

        def act(fields: Mapping[str, str]) -> Notice:
            with self._desk.session() as session:
                goal_service.move(session.store, goal_id, state, self._desk.person, fields.get("reason", "")[:500])
            return Notice(tone="good", text=words.word(page_words.MOVES, verb))

        return await self._act(request, act)

    async def answer(self, request: Request) -> Response:
        gate_id = request.path_params["gate_id"]

        def act(fields: Mapping[str, str]) -> Notice:
            with self._desk.session() as session:
                done = gate_service.answer(session.store, gate_id, fields.get("answer", ""), self._desk.person)
                moving = views.live_turn(session.store, done.goal_id)
            hint = "" if moving or done.goal_state != GoalState.ACTIVE else f"loopx run {done.goal_id}"
            text = translate("Answered: {answer}").format(answer=done.answer[:200])
            return Notice(tone="good", text=text, hint=hint)

        return await self._act(request, act)

    async def _act(self, request: Request, act: Act) -> Response:
        """Check the form's secret, act, and lead back to the page with what came of it."""
        from starlette.concurrency import run_in_threadpool

        fields = await _form(request)
        # A program with the token in a header sends no cookie, so that no other page can make it write.
        if request.scope[AUTH] != "bearer" and not accesses.same(fields.get("form"), self._desk.access.form):
            raise UsageError("form_expired", "this page is of an earlier start of the server", hint="open it again")
        plain = "text/html" not in request.headers.get("accept", "")
        try:
            notice = await run_in_threadpool(act, fields)
        except LoopXError as error:
            if plain:
                raise
            notice = Notice(tone="bad", text=error.message, hint=error.hint)
        if plain:
            return JSONResponse({"ok": True, "text": notice.text})
        back = fields.get("back", "/")
        back = back if back.startswith("/") and not back.startswith(("//", "/\\")) else "/"
        mark = "&" if "?" in back else "?"
        return RedirectResponse(f"{back}{mark}said={self._desk.leave(notice)}", status_code=303)

    # News

    async def live_board(self, request: Request) -> Response:
        return board_events(self._desk, request)

    async def live_goal(self, request: Request) -> Response:
        return goal_events(
            self._desk, request, request.path_params["goal_id"], _number(request.query_params.get("turn"))
        )

    # The door, and what lies before it

    def ask_token(self, request: Request) -> Response:
        wrong = request.query_params.get("wrong") == "1"
        return HTMLResponse(pages.render("enter.html", {"wrong": wrong}), status_code=401)

    async def enter(self, request: Request) -> Response:
        fields = await _form(request)
        if not accesses.same(fields.get("token", "").strip(), self._desk.access.token):
            return RedirectResponse("/enter?wrong=1", status_code=303)
        answer = RedirectResponse("/", status_code=303)
        answer.headers["set-cookie"] = accesses.cookie_header(self._desk.access)
        return answer

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in TYPES:
            return Response("no such file\n", status_code=404, media_type="text/plain")
        return Response(pages.static(name), headers={"content-type": TYPES[name], "cache-control": "no-cache"})

    # What went wrong

    def failed(self, request: Request, error: Exception) -> Response:
        """A typed error, as a page for people and as JSON for programs."""
        assert isinstance(error, LoopXError)
        status = _STATUS.get(error.exit_code, 500)
        if "text/html" not in request.headers.get("accept", ""):
            body = {"code": error.code, "message": error.message, "hint": error.hint}
            return JSONResponse({"ok": False, "error": body}, status_code=status)
        title = translate("Not found") if status == 404 else translate("That did not work")
        return self._wrong(request, title, error.message, error.hint, status)

    def missing(self, request: Request, error: Exception) -> Response:
        return self._wrong(request, translate("Not found"), translate("There is no such page."), "", 404)

    def _wrong(self, request: Request, title: str, text: str, hint: str, status: int) -> Response:
        answer = self._page(request, "wrong.html", "", "", title=title, text=text, hint=hint, now_ms=_now_ms())
        answer.status_code = status
        return answer


def _now_ms() -> int:
    from loopx.runtime.clock import SystemClock

    return SystemClock().now_ms()


def _number(text: str | None) -> int:
    """A positive number of a query; 0 for anything else."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


async def _form(request: Request) -> dict[str, str]:
    """A small urlencoded form. Raises UsageError (`form_too_large`)."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES:
            raise UsageError("form_too_large", "the form is too large", hint="answer in fewer words")
    return {
        key: values[-1] for key, values in parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True).items()
    }
