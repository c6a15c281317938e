# Six verbs: demo, test, check, bench, chaos, hosts. `make demo` and `make test` need git, make and Python 3.11 or newer.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test check bench chaos hosts docs lock clean

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# A newer node than the machine's, when scripts/test_tools.sh had to fetch one.
export PATH := $(CURDIR)/.node/node_modules/node/bin:$(PATH)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)

help:
	@echo 'make demo    the whole story in half a minute: an agent, a lie, a crash, and the proof'
	@echo 'make test    the tests; at most 15 minutes on two cores'
	@echo 'make check   format, lint, types, import rules, docs, file sizes'
	@echo 'make bench   how fast it is here'
	@echo 'make chaos   crashes, races and full disks: the whole matrices'
	@echo 'make hosts   every case with the real agent CLIs from npm'

$(VENV)/.runs: pyproject.toml requirements.lock scripts/venv.sh
	@PYTHON='$(PYTHON)' bash scripts/venv.sh $(VENV) all
	@touch $@

$(VENV)/.tests: pyproject.toml requirements.lock scripts/venv.sh
	@PYTHON='$(PYTHON)' bash scripts/venv.sh $(VENV) all,dev
	@touch $(VENV)/.runs $@

demo: $(VENV)/.runs
	@$(BIN)/loopx demo

test: $(VENV)/.tests
	@bash scripts/test_tools.sh
	$(PYTEST) -m 'not chaos and not real_cli' $(ARGS)

check: $(VENV)/.tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_sizes.py
	$(BIN)/python scripts/generate_docs.py --check
	$(BIN)/python -m scripts.generate_gallery --check
	$(BIN)/python scripts/check_docs.py

bench: $(VENV)/.tests
	@if [ -f bench/run.py ]; then $(BIN)/python bench/run.py $(ARGS); else echo 'no benchmarks yet'; fi

chaos: $(VENV)/.tests
	@bash scripts/test_tools.sh
	$(PYTEST) -m chaos $(ARGS)

hosts: $(VENV)/.tests
	@bash scripts/test_tools.sh
	$(PYTEST) tests/hosts tests/e2e -m real_cli $(ARGS)

docs: $(VENV)/.tests
	$(BIN)/python scripts/generate_docs.py
	$(BIN)/python -m scripts.generate_gallery

# Names and versions only, so that it holds on any index.
lock: $(VENV)/.tests
	@$(BIN)/python -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' | LC_ALL=C sort -f > requirements.lock
	@echo 'requirements.lock is what $(VENV) has'

clean:
	rm -rf $(VENV) .node build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
