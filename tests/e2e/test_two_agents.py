"""Two real agent CLIs and a person finish one goal of eight dependent todos, over MCP, on one store: each todo is done
by whoever may do it, a review by the other one, a question by the person, a deployment by LoopX; and the audit log
tells the whole story again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.work_items.todo import GOAL_ITSELF
from loopx.runtime import replaying
from loopx.runtime.session import open_session
from loopx.testing import find_leaks
from tests.hosts.harness import MODELS, Rig, rig
from tests.hosts.modelserver import serving
from tests.hosts.script import Hold, Say, Step, Tool, Write

DEPLOY = '[capabilities.deploy]\nargv = ["sh", "-c", "echo deployed >> LOG"]\n'
SHOP = "look at it in the shop"
CHECK = "grep -qs Ada signed.txt"


class Team:
    """One project and one store; Codex and Claude Code, each with a home and a scripted model of its own."""

    def __init__(self, codex: Rig, claude: Rig) -> None:
        self.rigs = {"codex": codex, "claude": claude}
        self.root = codex.work
        self.state = codex.root / "state"
        self.log = codex.root / "deployed.log"
        # The goal names no model: each program has the one of its own configuration.
        settings = codex.home / "codex" / "config.toml"
        settings.write_text(f'model = "{MODELS["codex"]}"\n{settings.read_text()}')
        (self.root / "loopx.toml").write_text(DEPLOY.replace("LOG", str(self.log)))
        for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "start")):
            subprocess.run(["git", "-c", "user.name=T", "-c", "user.email=t@x", *words], cwd=self.root, check=True)

    def env(self, agent: str) -> dict[str, str]:
        bench = self.rigs[agent]
        env = {**dict(bench.env), "LOOPX_STATE_DIR": str(self.state), "USER": "ada"}
        own = [str(Path(bench.program).parent), str(Path(sys.executable).parent)]
        return {**env, "PATH": os.pathsep.join([*own, env["PATH"]])}

    def write(self, name: str, text: str) -> Write:
        return Write(path=str(self.root / name), content=text)

    # -- the person --

    def loopx(self, *words: str) -> dict[str, Any]:
        """What the person runs on the command line; it must end with 0."""
        process = self._start("codex", *words)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (words, out, err)
        said: dict[str, Any] = json.loads(out.splitlines()[-1])
        return said

    def todo(self, title: str, *words: str) -> str:
        return str(self.loopx("todo", "add", "ship", title, *words)["todo_id"])

    def open_question(self) -> dict[str, Any]:
        """The one question that came from an agent; the other stands for the person's own todo."""
        [gate] = [one for one in self.loopx("gate", "list", "ship")["gates"] if one["question"] != SHOP]
        return dict(gate)

    # -- the agents --

    def starts(self, agent: str, *steps: Step, turns: int = 1) -> subprocess.Popen[str]:
        """Start a run of so many turns by this agent, whose model says these steps."""
        self.rigs[agent].server.extend(steps)
        words = ("run", "ship", "--engine", agent, "--agent-id", agent, "--max-turns", str(turns), "--no-wait")
        return self._start(agent, *words)

    def turn(self, agent: str, *steps: Step) -> dict[str, Any]:
        """One turn by this agent; how the run ended."""
        return self.ended(self.starts(agent, *steps))

    def ended(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=240)
        lines = [json.loads(line) for line in out.splitlines()]
        assert lines, err
        turns = [line for line in lines if line["type"] == "turn"]
        return {**lines[-1], "kinds": [turn["result_kind"] for turn in turns]}

    def _start(self, agent: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "loopx", *words, "--json"],
            cwd=self.root,
            env=self.env(agent),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def heard(self, agent: str) -> str:
        """Everything that this agent's model was told."""
        return json.dumps([request.body for request in self.rigs[agent].server.requests])


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    with serving() as one, serving() as other, rig("codex", one) as codex, rig("claude", other) as claude:
        made = Team(codex, claude)
        monkeypatch.setenv("LOOPX_STATE_DIR", str(made.state))
        yield made


def called(tool: str, **arguments: Any) -> Tool:
    return Tool(server="loopx", name=tool, arguments=arguments)


DONE = called("complete_todo", summary="done")


@pytest.mark.real_cli
@pytest.mark.timeout(600)
def test_two_agents_and_a_person_finish_one_goal_and_the_log_replays_it(team: Team) -> None:
    create = ("goal", "create", "ship the greeter", "--check", f"signed={CHECK}", "--goal-id", "ship")
    team.loopx(*create, "--engine", "codex", "--engine", "claude")
    plan = team.todo("plan it", "--check", "test -s plan.txt")
    words = team.todo("find the words", "--depends-on", plan, "--scope", "words.txt", "--check", "test -s words.txt")
    voice = team.todo("find the voice", "--depends-on", plan, "--scope", "voice.txt", "--check", "test -s voice.txt")
    joined = team.todo("join both", "--depends-on", words, "--depends-on", voice, "--check", "test -s joined.txt")
    review = team.todo("review the joining", "--review-of", joined, "--check", "grep -qs good review.txt")
    signed = team.todo("sign it", "--depends-on", joined, "--check", CHECK)
    deployed = team.todo(
        "deploy it", "--depends-on", review, "--depends-on", signed, "--check", "grep -qs deployed receipt.txt"
    )
    approve = team.todo(SHOP, "--depends-on", deployed, "--person")

    # Codex plans; then both work at once, in one tree, each on a todo of its own.
    ended = team.turn("codex", called("get_turn"), team.write("plan.txt", "both"), DONE, Say(text="Planned."))
    assert ended["kinds"] == ["validated_completion"], ended
    held = team.starts("codex", Hold(then=team.write("words.txt", "hello")), DONE, Say(text="Words."))
    assert team.rigs["codex"].server.silent.wait(60)
    greedy = called("claim_todo", todo_id=words)
    ended = team.turn("claude", called("list_todos"), greedy, team.write("voice.txt", "la"), DONE, Say(text="Voice."))
    assert ended["kinds"] == ["validated_completion"], ended
    team.rigs["codex"].server.release.set()
    ended = team.ended(held)
    assert ended["kinds"] == ["validated_completion"], ended

    # Codex joins, may not review that itself, and asks the person how to sign.
    ended = team.turn("codex", team.write("joined.txt", "hello la"), DONE, Say(text="Joined."))
    assert ended["kinds"] == ["validated_completion"], ended
    ask = called("ask_person", question="Sign it as whom?", choices=["Ada", "Grace"])
    ended = team.turn("codex", called("claim_todo", todo_id=review), ask, Say(text="I asked."))
    assert (ended["exit_code"], ended["question"]) == (11, "Sign it as whom?"), ended

    # While that waits, Claude Code reviews.
    ended = team.turn("claude", called("get_turn"), team.write("review.txt", "good"), DONE, Say(text="Reviewed."))
    assert ended["kinds"] == ["validated_completion"], ended
    team.loopx("gate", "answer", team.open_question()["gate_id"], "Ada")
    ended = team.turn("codex", called("get_turn"), team.write("signed.txt", "Ada"), DONE, Say(text="Signed."))
    assert ended["kinds"] == ["validated_completion"], ended
    assert "Sign it as whom? -> Ada" in team.heard("codex")

    # Claude Code asks for the deployment; the person allows it, LoopX runs it once, and the agent hears of it.
    deploy = called("request_capability", name="deploy", reason="it is signed")
    ended = team.turn("claude", deploy, Say(text="Asked."))
    assert ended["exit_code"] == 11, ended
    assert not team.log.exists()
    team.loopx("gate", "answer", team.open_question()["gate_id"], "yes")
    ended = team.turn("claude", called("get_turn"), team.write("receipt.txt", "deployed"), DONE, Say(text="Noted."))
    assert ended["kinds"] == ["validated_completion"], ended
    assert team.log.read_text() == "deployed\n"
    assert "capability deploy: done" in team.heard("claude")

    # The person's own todo is the last; then nothing is left, and the goal closes.
    team.loopx("todo", "complete", approve, "--note", "looks fine")
    ended = team.turn("codex", Say(text="There is nothing left to do."))
    assert (ended["goal_state"], ended["exit_code"], ended["kinds"]) == ("completed", 0, []), ended

    by_codex, by_claude = (plan, words, joined, signed), (voice, review, deployed)
    _who_did_what(team, {**dict.fromkeys(by_codex, "codex"), **dict.fromkeys(by_claude, "claude"), approve: "ada"})
    _the_log_tells_it_again(team)


def _who_did_what(team: Team, expected: dict[str, str]) -> None:
    session = open_session(str(team.root), create=False)
    try:
        with session.store.read() as tx:
            rows = tx.all("todos.page", goal_id="ship", after="", limit=50)
    finally:
        session.close()
    # The todo that stood for the goal itself gave way to the first slice of it.
    slices = [row for row in rows if row["reason"] != GOAL_ITSELF]
    assert {row["todo_id"]: row["done_by"] for row in slices} == expected
    assert {row["status"] for row in slices} == {"done"}


def _the_log_tells_it_again(team: Team) -> None:
    session = open_session(str(team.root), create=False)
    try:
        told = replaying.replay(session.store, "ship")
        assert find_leaks(session.store) == ()
    finally:
        session.close()
    assert told.agrees, told
    assert sorted(told.todos.values()) == ["done"] * 8 + ["superseded"]
    assert set(told.gates.values()) == {"answered"} and len(told.gates) == 3
    assert list(told.capabilities.values()) == ["done"]
    refused = [one for one in team.loopx("log", "ship", "--limit", "1000")["events"] if one["kind"] == "agent_refused"]
    assert [one["body"]["code"] for one in refused] == ["lease_held", "four_eyes"], refused
