"""Which files belong to which tool: tests by their usual names, configuration, locks, CI. Data, and nothing else."""

from __future__ import annotations

import re

from loopx.contracts.commands import Tool

TEST_FOLDERS = (
    *("tests", "test", "spec", "specs", "__tests__", "__mocks__", "testdata", "e2e", "unit_tests", "unittests"),
    *("integration_tests", "integration-tests", "functional_tests", "Tests"),
)
"""Folders which hold nothing but tests, their helpers and their data."""
TEST_FOLDER = re.compile(rf"(?:^|/)(?:{'|'.join(map(re.escape, TEST_FOLDERS))})(?:/|$)")
TESTISH = re.compile(
    r"(?:^|[/_.-])(?:tests?|testing|testdata|specs?|checks?|checker|verify|verification|validate|smoke|golden|"
    r"expect(?:ed)?|fixtures?|snapshots?|acceptance|e2e|ci|lint|grade|grader|judge|eval|asserts?|regression|"
    r"conformance|bench|benchmark|quality)(?:[/_.\-\d]|$)",
    re.IGNORECASE,
)
"""Names which say that a file judges the work rather than being the work."""

TESTS_BY_NAME: dict[Tool, tuple[str, ...]] = {
    Tool.PYTEST: ("test_*.py", "*_test.py"),
    Tool.UNITTEST: ("test*.py",),
    Tool.JEST: ("*.test.*", "*.spec.*", "__tests__", "__mocks__", "__snapshots__"),
    Tool.VITEST: ("*.test.*", "*.spec.*", "__tests__", "__mocks__", "__snapshots__"),
    Tool.NODE_TEST: ("*.test.js", "*.test.mjs", "*.test.cjs", "*.test.ts", "*-test.js", "*_test.js", "test-*.js"),
    Tool.GO_TEST: ("*_test.go", "testdata"),
    Tool.CARGO_TEST: ("tests",),
    Tool.TAP: ("t", "*.t"),
}
ANY_TESTS = (
    *("test_*.py", "*_test.py", "*.test.*", "*.spec.*", "__tests__", "__snapshots__", "*_test.go", "*_spec.rb", "*.t"),
    *("tests", "test", "spec", "specs"),
)
"""Taken when no check says which tests it runs."""

CONFIG_FILES: dict[str, tuple[str, ...]] = {
    "pytest": ("/pytest.ini", "/.pytest.ini", "/pytest.toml", "/.pytest.toml", "conftest.py", "/.coveragerc"),
    "tox": ("/noxfile.py", "/toxfile.py", "/tox.toml"),
    "node": (
        *("jest.config.*", "jest.setup.*", "jest.preset.*", "vitest.config.*", "vitest.setup.*", "vitest.workspace.*"),
        *(".mocharc*", ".nycrc*", "setupTests.*"),
    ),
    "cargo": ("/.cargo/config.toml", "/.cargo/config", "/.config/nextest.toml"),
    "prove": ("/.proverc",),
    "ruff": ("ruff.toml", ".ruff.toml"),
    "mypy": ("/mypy.ini", "/.mypy.ini"),
    "flake8": ("/.flake8",),
    "pylint": ("/.pylintrc", "/pylintrc"),
    "pyright": ("/pyrightconfig.json",),
    "eslint": ("eslint.config.*", ".eslintrc*"),
    "tsc": ("tsconfig.json", "tsconfig.*.json"),
    "biome": ("/biome.json", "/biome.jsonc"),
    "pre-commit": ("/.pre-commit-config.yaml",),
    "golangci-lint": ("/.golangci.yml", "/.golangci.yaml", "/.golangci.toml"),
    "clippy": ("/clippy.toml", "/.clippy.toml"),
    "just": ("/justfile", "/Justfile", "/.justfile"),
    "coverage": ("/.coveragerc",),
}
TOOLS_OF_RUNNER: dict[Tool, frozenset[str]] = {
    Tool.PYTEST: frozenset({"pytest", "coverage"}),
    Tool.TOX: frozenset({"tox", "pytest", "coverage"}),
    Tool.JEST: frozenset({"node"}),
    Tool.VITEST: frozenset({"node"}),
    Tool.NODE_TEST: frozenset({"node"}),
    Tool.NPM_SCRIPT: frozenset({"node"}),
    Tool.CARGO_TEST: frozenset({"cargo"}),
    Tool.TAP: frozenset({"prove"}),
}
PYTHON_LOCKS = ("/uv.lock", "/poetry.lock", "/Pipfile.lock", "/pdm.lock", "/pylock.toml")
NODE_LOCKS = ("package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb")
LOCKS_OF_RUNNER: dict[Tool, tuple[str, ...]] = {
    Tool.PYTEST: PYTHON_LOCKS,
    Tool.UNITTEST: PYTHON_LOCKS,
    Tool.TOX: PYTHON_LOCKS,
    Tool.JEST: NODE_LOCKS,
    Tool.VITEST: NODE_LOCKS,
    Tool.NODE_TEST: NODE_LOCKS,
    Tool.NPM_SCRIPT: NODE_LOCKS,
    Tool.GO_TEST: ("go.sum",),
    Tool.CARGO_TEST: ("Cargo.lock",),
}
MANIFESTS = frozenset(
    {"pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "package.json", "go.mod", "Cargo.toml", "environment.yml"}
)
"""Files by which a project asks for other dependencies (beside locks and `requirements*.txt`)."""
STARTUP_HOOKS = ("sitecustomize.py", "usercustomize.py", "sitecustomize", "usercustomize", "*.pth")
CI_FILES = (
    *("/.github/workflows", "/.github/actions", "/.gitlab-ci.yml", "/.gitlab/ci", "/.circleci", "/.ci", "/.buildkite"),
    *("/azure-pipelines.yml", "/azure-pipelines.yaml", "/Jenkinsfile", "/.travis.yml", "/.drone.yml", "/.woodpecker"),
    *("/.woodpecker.yml", "/bitbucket-pipelines.yml", "/appveyor.yml", "/.appveyor.yml", "/.cirrus.yml", "/.semaphore"),
)
OWN_FILES = ("/.loopx", "/loopx.toml")
