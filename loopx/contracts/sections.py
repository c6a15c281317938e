"""Files that a test runner shares with others: whether a change touches the sections that are the runner's own.

Pure, over bytes. A file that can't be read counts as changed when it was readable before, so breaking it hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

# Which parts of shared files belong to which tool. A name ending in `*` is a prefix.
_TOML_TABLES = {
    "pytest": ("tool.pytest*", "tool.coverage*"),
    "coverage": ("tool.coverage*",),
    "tox": ("tool.tox*",),
    "ruff": ("tool.ruff*",),
    "mypy": ("tool.mypy*",),
    "black": ("tool.black*",),
    "isort": ("tool.isort*",),
    "pylint": ("tool.pylint*",),
    "pyright": ("tool.pyright*", "tool.basedpyright*"),
    "poe": ("tool.poe*",),
}
_INI_SECTIONS = {
    "pytest": ("pytest", "tool:pytest", "coverage:*"),
    "coverage": ("coverage:*",),
    "tox": ("tox", "testenv*"),
    "mypy": ("mypy*",),
    "flake8": ("flake8",),
    "pylint": ("pylint*", "MASTER", "MESSAGES CONTROL"),
    "isort": ("isort",),
}
_PACKAGE_KEYS = {
    "node": ("scripts", "jest", "vitest", "mocha", "ava", "tap", "nyc", "c8"),
    "eslint": ("eslintConfig",),
}
_CARGO_TABLES = {"cargo": ("test", "lib.test", "lib.doctest", "bin.test", "profile.test", "workspace.metadata.nextest")}
DEFAULT_TOOLS = frozenset({"pytest", "coverage", "tox", "node", "cargo"})
SHARED_FILES = frozenset({"pyproject.toml", "setup.cfg", "tox.ini", "package.json", "Cargo.toml"})
"""Files of which only the sections of a check's tools are protected."""


def protected_section_changed(
    path: str, old: bytes | None, new: bytes | None, tools: frozenset[str] = DEFAULT_TOOLS
) -> bool:
    """Whether the sections of a shared file that belong to these tools differ; None: there is no such file.

    A file that is not shared belongs to its tool as a whole.
    """
    name = path.rpartition("/")[2]
    if name not in SHARED_FILES:
        return old != new
    before, after = _own_part(name, old, tools), _own_part(name, new, tools)
    return old != new if before is None and after is None else before != after


_Part = Mapping[str, object] | None


def _own_part(name: str, data: bytes | None, tools: frozenset[str]) -> _Part:
    """The tools' own sections; an absent file has none, an unreadable one equals nothing readable."""
    if data is None:
        return {}
    readers: dict[str, tuple[Callable[[bytes], Mapping[str, object]], Mapping[str, tuple[str, ...]]]] = {
        "pyproject.toml": (_toml, _TOML_TABLES),
        "Cargo.toml": (_toml, _CARGO_TABLES),
        "setup.cfg": (_ini, _INI_SECTIONS),
        "tox.ini": (_ini, _INI_SECTIONS),
        "package.json": (_json, _PACKAGE_KEYS),
    }
    read, own = readers[name]
    try:
        document = read(data)
    except ValueError:
        return None
    names = tuple(pattern for tool in sorted(tools) for pattern in own.get(tool, ()))
    return {key: value for key, value in _flat(document, names) if value is not None}


def _flat(document: Mapping[str, object], names: tuple[str, ...]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name in names:
        prefix, star, _ = name.partition("*")
        if star and not prefix.startswith("tool."):
            found.extend((key, value) for key, value in document.items() if key.startswith(prefix))
        else:
            found.append((name, _at(document, prefix.split("."), is_prefix=bool(star))))
    return found


def _at(document: object, parts: list[str], *, is_prefix: bool) -> object:
    """What a dotted name holds; with `is_prefix` every key that begins with its last part."""
    for index, part in enumerate(parts):
        if isinstance(document, list):  # an array of tables, such as `[[bin]]`
            return [_at(item, parts[index:], is_prefix=is_prefix) for item in document]
        if not isinstance(document, Mapping):
            return None
        if is_prefix and index == len(parts) - 1:
            return {key: value for key, value in document.items() if key.startswith(part)} or None
        document = document.get(part)
    return document


def _toml(data: bytes) -> Mapping[str, object]:
    import tomllib

    return tomllib.loads(data.decode())


def _ini(data: bytes) -> Mapping[str, object]:
    import configparser

    class Parser(configparser.RawConfigParser):
        def optionxform(self, optionstr: str) -> str:
            """Option names keep their case."""
            return optionstr

    parser = Parser(strict=False, allow_no_value=True)
    try:
        parser.read_string(data.decode())
    except configparser.Error as failed:
        raise ValueError(str(failed)) from failed
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _json(data: bytes) -> Mapping[str, object]:
    document: object = msgspec.json.decode(data)
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document


def package_script(data: bytes | None, name: str) -> str | None:
    """The command of a script of `package.json`."""
    try:
        scripts = _json(data or b"{}").get("scripts")
    except ValueError:
        return None
    found = scripts.get(name) if isinstance(scripts, dict) else None
    return found if isinstance(found, str) else None


def pytest_settings(read: Callable[[str], bytes | None]) -> dict[str, tuple[str, ...]]:
    """`testpaths` and `python_files` of the root's pytest configuration, in pytest's own order of precedence."""
    for name, section in (
        ("pytest.ini", "pytest"),
        (".pytest.ini", "pytest"),
        ("pyproject.toml", "tool.pytest.ini_options"),
        ("tox.ini", "pytest"),
        ("setup.cfg", "tool:pytest"),
    ):
        data = read(name)
        if data is None:
            continue
        try:
            document = _toml(data) if name == "pyproject.toml" else _ini(data)
        except ValueError:
            continue
        found = _at(document, section.split("."), is_prefix=False)
        if isinstance(found, Mapping):
            return {key: _words(found.get(key)) for key in ("testpaths", "python_files")}
    return {}


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
