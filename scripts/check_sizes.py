"""The size gate: no module over 500 lines, no function over 80. Splitting early is cheaper than reading late."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("loopx", "tests", "scripts", "examples", "regression", "bench")
MAX_LINES = 500
MAX_FUNCTION = 80


def python_files() -> Iterator[Path]:
    """Every Python file that is ours."""
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


def problems() -> Iterator[str]:
    """One line for each file and each function of the product that is too long."""
    for path in python_files():
        name = path.relative_to(ROOT)
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > MAX_LINES:
            yield f"{name}: {lines} lines, at most {MAX_LINES}"
        if name.parts[0] == "loopx":
            for function, length in _functions(text):
                if length > MAX_FUNCTION:
                    yield f"{name}: {function} has {length} lines, at most {MAX_FUNCTION}"


def _functions(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def main() -> int:
    found = list(problems())
    print("\n".join(found) if found else f"sizes: {sum(1 for _ in python_files())} files, none too long")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
