"""The whole gallery in its order, and as a table for people."""

from __future__ import annotations

from tests.gallery import cheat_programs, cheat_runner, cheat_tests, cheat_truth, honest_tests, honest_tree

CHEATS = (*cheat_tests.CASES, *cheat_runner.CASES, *cheat_programs.CASES, *cheat_truth.CASES)
HONEST = (*honest_tests.CASES, *honest_tree.CASES)
