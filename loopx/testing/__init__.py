"""What tests of LoopX, and of programs that embed it, need: a scripted agent, a sandbox, a clock and ids of one's own,
faults on demand, and a leak checker.

It is part of the product: nothing here reaches into a running LoopX, and nothing of LoopX imports it.

    from loopx.testing import Act, Sandbox, find_leaks

    with Sandbox("/tmp/try") as sandbox:
        goal = sandbox.goal(Act(write={"answer.txt": "42\\n"}), checks=("grep -q 42 answer.txt",))
        assert sandbox.run(goal).exit_code == 0
        assert not find_leaks(sandbox.store)
"""

from __future__ import annotations

from loopx.testing.agent import Act, ScriptedAgent
from loopx.testing.clock import CountingIds, FakeClock
from loopx.testing.leaks import Leak, LeakKind, find_leaks
from loopx.testing.sandbox import Sandbox, temporary_store

__all__ = [
    "Act",
    "CountingIds",
    "FakeClock",
    "Leak",
    "LeakKind",
    "Sandbox",
    "ScriptedAgent",
    "find_leaks",
    "temporary_store",
]
