"""Which shell commands a host with an allow list may run without asking: reading, building and testing, and the goal's
own checks. Data, rendered by each adapter into its CLI's syntax.

An allow list is not a sandbox: an interpreter on it can do what its user can. It keeps an agent on the beaten track and
makes the rest a visible denial; a goal that needs more says so in its own arguments or with `bypass`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

READ_COMMANDS: tuple[str, ...] = (
    "cat",
    "diff",
    "echo",
    "file",
    "git blame",
    "git diff",
    "git log",
    "git ls-files",
    "git show",
    "git status",
    "grep",
    "head",
    "loopx",
    "ls",
    "pwd",
    "rg",
    "sort",
    "stat",
    "tail",
    "tree",
    "wc",
    "which",
)

WORK_COMMANDS: tuple[str, ...] = (
    *READ_COMMANDS,
    "bun run",
    "bun test",
    "bundle exec",
    "cargo",
    "cmake",
    "cp",
    "ctest",
    "dotnet build",
    "dotnet test",
    "eslint",
    "find",
    "go build",
    "go mod tidy",
    "go run",
    "go test",
    "go vet",
    "gofmt",
    "gradle",
    "./gradlew",
    "jest",
    "make",
    "mkdir",
    "mv",
    "mvn",
    "mypy",
    "ninja",
    "node",
    "npm run",
    "npm test",
    "nox",
    "phpunit",
    "pnpm run",
    "pnpm test",
    "prettier",
    "printf",
    "pytest",
    "python",
    "python3",
    "rake",
    "rspec",
    "ruff",
    "sed",
    "test",
    "touch",
    "tox",
    "tsc",
    "uv run",
    "vitest",
    "yarn run",
    "yarn test",
)

DENIED_COMMANDS: tuple[str, ...] = ("git push", "git reset --hard", "git clean", "sudo", "su", "doas")

_JOINTS = re.compile(r"\s*(?:&&|\|\||;|\||\n)\s*")


def commands(allow: Sequence[str], *, read_only: bool) -> tuple[str, ...]:
    """The allowed command prefixes: the usual ones, then each simple command of `allow` (the goal's checks)."""
    usual = READ_COMMANDS if read_only else WORK_COMMANDS
    extra = (piece.strip() for command in allow for piece in _JOINTS.split(command))
    return tuple(dict.fromkeys((*usual, *(piece for piece in extra if piece))))
