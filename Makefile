# Two commands on a fresh machine: `make demo` and `make test`. Each creates what it needs.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# MLX's Linux wheel has no back end of its own; on macOS the plain wheel brings Metal.
comma := ,
EXTRAS := $(if $(filter Darwin,$(shell uname -s)),dev,dev$(comma)cpu)
PYTEST := $(PY) -m pytest -n auto

.PHONY: help demo test test-fast lint check bench clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $(STAMP)

demo: $(STAMP)  ## Run a fused GELU and a vector add, check them against MLX, show the Metal
	$(PY) examples/demo.py

test: $(STAMP)  ## The whole test suite
	$(PYTEST)

test-fast: $(STAMP)  ## The fast part of the suite
	$(PYTEST) -m "not slow"

lint: $(STAMP)  ## Lint and type-check
	$(PY) -m ruff check .
	$(PY) -m mypy

check: lint test-fast  ## Lint, types and the fast tests

bench: $(STAMP)  ## Launch overhead, compile time, static cost of the examples
	$(PY) benchmarks/launch_overhead.py
	$(PY) benchmarks/compile_time.py
	$(PY) benchmarks/static_cost.py

clean:  ## Remove what the other targets created
	rm -rf $(VENV) .pytest_cache .hypothesis .mypy_cache .ruff_cache build *.egg-info
