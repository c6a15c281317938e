"""Clumsy words on the command line: refused as JSON where JSON was asked for, and never read as something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cli_kit import Cli


@pytest.mark.parametrize("group", ["goal", "quota", "notify"])
def test_a_group_without_a_verb_is_an_error_in_json(tmp_path: Path, group: str) -> None:
    ran = Cli(tmp_path).loopx(group, "--json")

    assert (ran.code, ran.error["code"]) == (2, "verb_missing")


@pytest.mark.parametrize("flag", ["--max-turns", "--minutes"])
def test_an_empty_limit_is_not_the_default(tmp_path: Path, flag: str) -> None:
    cli = Cli(tmp_path)
    cli.create()

    ran = cli.loopx("run", "fg", flag, "", "--no-wait", "--json")

    assert (ran.code, ran.error["code"], cli.launches) == (2, "limit_invalid", 0)
