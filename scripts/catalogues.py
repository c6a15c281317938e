"""The words of other languages: finds every text that people may see in translation, and compiles the catalogues.

    python scripts/catalogues.py            writes each loopx.mo from its loopx.po
    python scripts/catalogues.py --check    says what is missing, left over, or not compiled
    python scripts/catalogues.py --missing zh   prints what has no translation, to be filled in

The compiled file is the same on every machine, so that it can be checked in and compared.
"""

from __future__ import annotations

import argparse
import ast
import re
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from loopx.presentation.renderers import page_words, words

ROOT = Path(__file__).resolve().parent.parent
PRESENTATION = ROOT / "loopx" / "presentation"
LOCALES = PRESENTATION / "locales"
_CALL = re.compile(r"""\b_\(\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*\)""")
_COUNT = re.compile(r"""\bcount\([^,()]*(?:\([^()]*\))?[^,()]*,\s*'([a-z ]+)'\)""")
_SCOPES = ("a turn", "a window", "a goal")
"""`_('a ' ~ scope)` of a budget."""


def texts() -> frozenset[str]:
    """Every text that is looked up in a catalogue."""
    found: set[str] = set(_SCOPES)
    for module in (words, page_words):
        for name, table in vars(module).items():
            if name.isupper() and isinstance(table, Mapping) and name != "TONES":
                found.update(text for text in table.values() if text)
    for path in PRESENTATION.rglob("*.html"):
        source = path.read_text(encoding="utf-8")
        found.update(single or double for single, double in _CALL.findall(source))
        for noun in _COUNT.findall(source):
            found |= {noun, f"{noun}s"}
    for path in PRESENTATION.rglob("*.py"):
        found.update(_literals(ast.parse(path.read_text(encoding="utf-8"))))
    return frozenset(text for text in found if not text.endswith(" "))


def _literals(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "translate":
            yield from _strings(node.args[0])
        elif called == "count" and len(node.args) > 1:
            for noun in _strings(node.args[1]):
                yield noun
                if len(node.args) == 2:
                    yield f"{noun}s"
            if len(node.args) > 2:
                yield from _strings(node.args[2])


def _strings(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _strings(node.body)
        yield from _strings(node.orelse)


def read(path: Path) -> dict[str, str]:
    """The translations of a catalogue's source: msgid and msgstr, each on one line."""
    found: dict[str, str] = {}
    key: str | None = None
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("msgid "):
            key = ast.literal_eval(line.removeprefix("msgid "))
        elif line.startswith("msgstr ") and key is not None:
            found[key] = ast.literal_eval(line.removeprefix("msgstr "))
            key = None
    return found


def compiled(catalogue: Mapping[str, str]) -> bytes:
    """The binary form that the standard library's gettext reads."""
    pairs = sorted((key.encode(), text.encode()) for key, text in catalogue.items() if text)
    keys, values = bytearray(), bytearray()
    places: list[tuple[int, int, int, int]] = []
    for key, text in pairs:
        places.append((len(key), len(keys), len(text), len(values)))
        keys += key + b"\0"
        values += text + b"\0"
    head = 7 * 4
    start = head + 16 * len(pairs)
    first = [number for size, at, _, _ in places for number in (size, start + at)]
    second = [number for _, _, size, at in places for number in (size, start + len(keys) + at)]
    header = struct.pack("<7I", 0x950412DE, 0, len(pairs), head, head + 8 * len(pairs), 0, 0)
    return header + struct.pack(f"<{len(first)}I", *first) + struct.pack(f"<{len(second)}I", *second) + keys + values


def sources() -> Iterator[Path]:
    """The source of each catalogue."""
    yield from sorted(LOCALES.glob("*/LC_MESSAGES/loopx.po"))


def problems() -> Iterator[str]:
    """What is wrong with the catalogues, a line each."""
    wanted = texts()
    for path in sources():
        name = path.relative_to(ROOT)
        have = read(path)
        translated = {key for key, text in have.items() if text}
        for text in sorted(wanted - translated):
            yield f"{name}: no translation of {text!r}"
        for text in sorted(set(have) - wanted - {""}):
            yield f"{name}: nobody says {text!r} any more"
        for key, text in sorted(have.items()):
            if key and sorted(re.findall(r"\{\w+\}", key)) != sorted(re.findall(r"\{\w+\}", text)):
                yield f"{name}: other fields than in {key!r}"
        binary = path.with_suffix(".mo")
        if not binary.exists() or binary.read_bytes() != compiled(have):
            yield f"{binary.relative_to(ROOT)}: not compiled; python scripts/catalogues.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--missing", metavar="LANGUAGE")
    args = parser.parse_args()
    if args.missing:
        have = read(LOCALES / args.missing / "LC_MESSAGES" / "loopx.po")
        for text in sorted(texts() - set(have)):
            print(f'msgid "{text}"\nmsgstr ""\n' if '"' not in text else f'msgid {text!r}\nmsgstr ""\n')
        return 0
    if args.check:
        found = list(problems())
        print("\n".join(found) if found else "catalogues: complete")
        return 1 if found else 0
    for path in sources():
        path.with_suffix(".mo").write_bytes(compiled(read(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
