# The two commands: `make fuzz` and `make test`. Each sets up .venv first if that is needed; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
CONSTRAINTS ?= constraints/cpu.txt
EXTRAS ?= dev,model,mutants,perf,postgresql,triton
# Index that serves another build of torch (CPU-only, some CUDA or ROCm release); empty: whatever pip finds by itself.
TORCH_INDEX ?=
# Further arguments of `kvcrucible fuzz` and of pytest.
FUZZ_ARGS ?=
PYTEST_ARGS ?=

# The first interpreter that runs and is new enough; a name on PATH may be a shim that leads nowhere.
CANDIDATES := python3.11 python3.12 python3.13 python3.14 python3 python
PYTHON ?= $(shell for name in $(CANDIDATES); do \
    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$name"; break; }; done)

BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: help setup fuzz test test-slow lint format wheel wheel-check clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One pip call, so that one resolution sees every requirement and every pin. The user's pip settings stay in force. What
# pip does is shown to a terminal; in a log it would be hundreds of lines.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found. Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 2; }
	@echo "Setting up $(VENV) with $(PYTHON): the extras $(EXTRAS), every version as $(CONSTRAINTS) pins it."
	@echo "The first time this downloads torch (190 MB and more) and takes a few minutes; what is cached is not downloaded again."
	"$(PYTHON)" -m venv "$(VENV)"
	"$(BIN)/python" -m pip install $(if $(MAKE_TERMOUT),,--quiet) --disable-pip-version-check \
	    $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") \
	    --constraint "$(CONSTRAINTS)" --editable ".[$(EXTRAS)]"
	@touch "$@"

setup: $(STAMP) ## create .venv with everything that development needs
	@echo "$(VENV) is ready. Go on with \`make fuzz\`, \`make test\` or \`make lint\`; \`make help\` lists the rest."
	@echo "\`source $(BIN)/activate\` puts kvcrucible on your PATH; \`kvcrucible doctor\` says what this machine has."

fuzz: $(STAMP) ## run a short fuzz campaign with live progress
	"$(BIN)/kvcrucible" fuzz $(FUZZ_ARGS)

test: $(STAMP) ## run the tests on every core, but for the slow ones
	"$(BIN)/pytest" -n auto -m "not slow" $(PYTEST_ARGS)

test-slow: $(STAMP) ## run the slow tests: whole recorded traces, every fault, wheels
	"$(BIN)/pytest" -n auto -m slow $(PYTEST_ARGS)

lint: $(STAMP) ## check style, formatting and types
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"
	"$(BIN)/mypy" examples

format: $(STAMP) ## rewrite the code in the agreed format
	"$(BIN)/ruff" check --fix-only --quiet .
	"$(BIN)/ruff" format .

wheel: $(STAMP) ## build sdist and wheel (the wheel from the sdist) into dist/
	rm -rf build dist
	"$(BIN)/python" -m build --no-isolation .

wheel-check: wheel ## install the wheel without torch into an empty environment and use it there
	"$(BIN)/python" tests/repository/check_wheel.py --constraint "$(CONSTRAINTS)" dist/*.whl

clean: ## remove what builds, tests and checks leave behind
	rm -rf build dist src/*.egg-info .coverage .coverage.* htmlcov .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

distclean: clean ## remove the virtual environment too
	rm -rf "$(VENV)"
