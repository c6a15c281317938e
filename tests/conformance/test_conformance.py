"""Every case of every conformance file, through the adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import adapters

FOLDER = Path(__file__).parent


def _cases(name: str) -> list[Any]:
    cases = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["id"]) for case in cases]


@pytest.mark.parametrize("case", _cases("route"))
def test_route(case: dict[str, Any]) -> None:
    assert adapters.route(case["facts"]) == case["route"]


@pytest.mark.parametrize("case", _cases("receipt"))
def test_receipt(case: dict[str, Any]) -> None:
    assert adapters.receipt(case) == case["expect"]


@pytest.mark.parametrize("case", _cases("disposition"))
def test_disposition(case: dict[str, Any]) -> None:
    assert adapters.disposition(case["facts"]) == case["disposition"]


@pytest.mark.parametrize("case", _cases("quota"))
def test_quota(case: dict[str, Any]) -> None:
    assert adapters.quota(case["facts"]) == case["state"]


@pytest.mark.parametrize("case", _cases("loop_failure"))
def test_loop_failure(case: dict[str, Any]) -> None:
    assert adapters.loop_failure(case["facts"]) == case["failure"]
