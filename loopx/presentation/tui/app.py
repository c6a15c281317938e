"""`loopx watch`: goals, the turn that runs, what its agent says, and the questions to a person, in one terminal.

It looks at the store twice a second from a worker thread, and acts only when a key is pressed. Strangers' words are
shown as plain text. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import Button, Footer, Input, Label, OptionList, RichLog, Static
from textual.widgets.option_list import Option

from loopx.control_plane.errors import LoopXError
from loopx.control_plane.goal import GoalState
from loopx.control_plane.work_items.gate import Gate
from loopx.presentation import untrusted
from loopx.presentation.i18n import translate
from loopx.presentation.renderers import page_words, words
from loopx.presentation.tui import text
from loopx.presentation.tui.source import Seen, Source
from loopx.runtime.views import GoalView

Act = Callable[[], None]
Severity = Literal["information", "warning", "error"]
LOOK_S = 0.5
MOST_LINES = 1000


class Sure(ModalScreen[bool]):
    """Asks once more before an agent is ended."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="sure"):
            yield Label(self._question, markup=False)
            with Horizontal():
                yield Button(translate("yes") + " (y)", variant="error", id="yes")
                yield Button(translate("no") + " (n)", id="no")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")


class AnswerGate(ModalScreen[str | None]):
    """One question with its options, or a line for own words."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "back")]

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate
        self._options = gate.options or (("yes", "always", "no") if gate.kind == "capability" else ("yes", "no"))

    def compose(self) -> ComposeResult:
        gate = self._gate
        asked = words.word(words.QUESTIONS, gate.question) if gate.question in words.QUESTIONS else gate.question
        with VerticalScroll(id="question"):
            yield Label(f"{gate.goal_id}  {words.word(words.GATE_KINDS, gate.kind)}", markup=False, id="asker")
            yield Static(untrusted.clean(asked), markup=False)
            yield OptionList(*[Option(untrusted.one_line(one, 80)) for one in self._options], markup=False)
            if not gate.options:
                yield Input(placeholder=translate("Answer in your own words"), max_length=2000)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._options[event.option_index])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(event.value)


class WatchApp(App[None]):
    """The application. `goal_id`: the goal to look at first."""

    TITLE = "LoopX"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #goals { width: 34; height: 100%; border: none; border-right: vkey $surface-lighten-2; background: $background; }
    #goals:focus { border: none; border-right: vkey $primary; }
    #goals > .option-list--option-highlighted { background: $surface-lighten-2; color: $text; }
    #goals > .option-list--option { padding: 0 1; }
    #detail { padding: 0 1; }
    #head { height: auto; padding: 0 0 1 0; }
    #now { height: auto; padding: 0 1; background: $boost; margin-bottom: 1; }
    #gate { height: auto; padding: 0 1; color: $text-warning; display: none; margin-bottom: 1; }
    #numbers { height: auto; max-height: 14; margin-bottom: 1; }
    #numbers Static { width: 1fr; height: auto; padding: 0 2 0 0; }
    #stream { border: round $surface-lighten-2; border-title-color: $text-muted; background: $background; }
    #sure, #question { width: 64; height: auto; max-height: 80%; padding: 1 2; }
    #sure, #question { background: $panel; border: round $primary; }
    #sure Horizontal { height: auto; padding-top: 1; } #sure Button { margin-right: 2; }
    #asker { color: $text-muted; padding-bottom: 1; }
    Sure, AnswerGate { align: center middle; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", translate("pause/resume")),
        Binding("a", "answer", translate("answer")),
        Binding("c", "cancel", translate("cancel")),
        Binding("r", "look", translate("look")),
        Binding("q", "quit", translate("quit")),
    ]

    def __init__(self, source: Source, goal_id: str | None = None) -> None:
        super().__init__()
        self._source = source
        self._goal_id = goal_id
        self._seen: Seen | None = None
        self._listed: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield OptionList(id="goals", markup=False)
            with Vertical(id="detail"):
                yield Static(id="head", markup=False)
                yield Static(id="gate", markup=False)
                yield Static(id="now", markup=False)
                with Horizontal(id="numbers"):
                    yield Static(id="turns", markup=False)
                    yield Static(id="checks", markup=False)
                    yield Static(id="spend", markup=False)
                yield RichLog(id="stream", wrap=True, markup=False, highlight=False, max_lines=MOST_LINES)
        yield Footer()

    def on_mount(self) -> None:
        stream = self.query_one("#stream", RichLog)
        stream.border_title = translate("what the agent says and does")
        self.query_one("#goals", OptionList).focus()
        self.set_interval(LOOK_S, self.action_look)
        self.action_look()

    @work(thread=True, exclusive=True, group="look", exit_on_error=False)
    def action_look(self) -> None:
        """Look at the store, in a thread of its own."""
        try:
            seen = self._source.look(self._goal_id)
        except LoopXError as error:
            self.call_from_thread(self._tell, error.message, "warning")
            return
        self.call_from_thread(self.show, seen)

    def show(self, seen: Seen) -> None:
        """Bring the screen up to date."""
        self._seen = seen
        try:
            self._show_goals(seen)
            if seen.goal is not None and seen.goal.goal.goal_id == self._goal_id:
                self._show_goal(seen.goal, seen)
        except NoMatches:
            # The screen is going away.
            return

    def _show_goals(self, seen: Seen) -> None:
        options = self.query_one("#goals", OptionList)
        lines = seen.board.seen.goals
        ids = tuple(line.goal_id for line in lines)
        if ids == self._listed:
            for index, line in enumerate(lines):
                options.replace_option_prompt_at_index(index, text.goal_label(line))
        else:
            options.clear_options()
            options.add_options([Option(text.goal_label(line), id=line.goal_id) for line in lines])
            self._listed = ids
            # Only a new list is told where to stand: between two looks the person may have moved on already.
            if self._goal_id in ids:
                options.highlighted = ids.index(self._goal_id)
        if self._goal_id is None and ids:
            self._goal_id = ids[0]
            options.highlighted = 0
            self.action_look()

    def _show_goal(self, view: GoalView, seen: Seen) -> None:
        for name in ("head", "now", "turns", "checks", "spend"):
            self.query_one(f"#{name}", Static).update(getattr(text, name)(view))
        gate = self.query_one("#gate", Static)
        gate.display = bool(view.open_gates)
        if view.open_gates:
            first = view.open_gates[0].question
            asked = words.word(words.QUESTIONS, first) if first in words.QUESTIONS else first
            gate.update(f"? {untrusted.one_line(asked, 300)}   ({translate('press a to answer')})")
        stream = self.query_one("#stream", RichLog)
        if seen.restart:
            stream.clear()
        for line in seen.lines:
            if page_words.stream_shown(line.kind, line.tool, denied=line.denied):
                stream.write(text.stream_line(line), scroll_end=stream.is_vertical_scroll_end)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_list.id == "goals" and event.option_id is not None and event.option_id != self._goal_id:
            self._goal_id = event.option_id
            self.action_look()

    def action_pause(self) -> None:
        """Pause an active goal; resume one that is paused or stopped."""
        view = self._view()
        if view is None:
            return
        active = view.goal.state is GoalState.ACTIVE
        self._act_move(view.goal.goal_id, GoalState.PAUSED if active else GoalState.ACTIVE)

    def action_cancel(self) -> None:
        """Stop the goal and end its agent, after asking."""
        view = self._view()
        if view is None:
            return
        goal_id = view.goal.goal_id

        def decided(sure: bool | None) -> None:
            if sure:
                self._act_move(goal_id, GoalState.STOPPED)

        asked = translate("Stop {goal} and end its agent now? What is committed stays.").format(goal=goal_id)
        self.push_screen(Sure(asked), decided)

    def action_answer(self) -> None:
        """Answer the goal's first open question."""
        view = self._view()
        if view is None or not view.open_gates:
            self._tell(translate("Nothing is asked here."), "information")
            return
        gate = view.open_gates[0]

        def answered(words_given: str | None) -> None:
            if words_given is not None:
                self._act_answer(gate.gate_id, words_given)

        self.push_screen(AnswerGate(gate), answered)

    def _view(self) -> GoalView | None:
        return self._seen.goal if self._seen is not None else None

    @work(thread=True, group="act", exit_on_error=False)
    def _act_move(self, goal_id: str, state: GoalState) -> None:
        self._do(lambda: self._source.move(goal_id, state), words.word(words.STATES, state))

    @work(thread=True, group="act", exit_on_error=False)
    def _act_answer(self, gate_id: str, answer: str) -> None:
        told = translate("Answered: {answer}").format(answer=untrusted.one_line(answer, 60))
        self._do(lambda: self._source.answer(gate_id, answer), told)

    def _do(self, act: Act, told: str) -> None:
        try:
            act()
        except LoopXError as error:
            self.call_from_thread(self._tell, error.message, "error")
            return
        self.call_from_thread(self._tell, told, "information")
        self.call_from_thread(self.action_look)

    def _tell(self, message: str, severity: Severity) -> None:
        self.notify(untrusted.one_line(message, 300), severity=severity, markup=False)

    def on_unmount(self) -> None:
        self._source.close()
