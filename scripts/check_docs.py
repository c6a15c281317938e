"""Docs that can't be wrong in small ways: links lead somewhere, named files exist, fences are of a kind that is run."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCES = {"sh", "python", "text", "json", "toml"}
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_FILE = re.compile(r"`(?!loopx/GOAL)((?:loopx|tests|examples|regression|scripts|docs|bench)/[\w./-]*)`")
_LINE = 140


def pages() -> list[Path]:
    """Every page that people read."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def problems() -> Iterator[str]:
    """One line for each thing that is wrong."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(ROOT)
        for fault in (*_fences(text), *_links(page, text), *_files(text), *_lines(page, text)):
            yield f"{name}: {fault}"


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def _fences(text: str) -> Iterator[str]:
    opened = False
    for line in text.splitlines():
        if not line.startswith("```"):
            continue
        if not opened and line[3:].strip() not in FENCES:
            yield f"a block of kind {line[3:].strip()!r}; use one of {', '.join(sorted(FENCES))}"
        opened = not opened
    if opened:
        yield "a block is not closed"


def _links(page: Path, text: str) -> Iterator[str]:
    for target in _LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"the link {target} leads nowhere"
        elif anchor and anchor not in _anchors(file):
            yield f"{target}: no such heading"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _files(text: str) -> Iterator[str]:
    for named in _FILE.findall(prose(text)):
        if not (ROOT / named).exists():
            yield f"`{named}` does not exist"


def _lines(page: Path, text: str) -> Iterator[str]:
    if page.is_relative_to(ROOT / "docs" / "reference"):
        return
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > _LINE and not line.startswith("|"):
            yield f"line {number} has {len(line)} characters, at most {_LINE}"


def main() -> int:
    found = list(problems())
    print("\n".join(found) if found else f"docs: {len(pages())} pages, every link and file is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
