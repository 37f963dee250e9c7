# What a person runs, CI runs. `make help` lists it.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# Dependency groups need pip 25.1 or later, which Python 3.11 does not bring.
PIP := PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet
SOURCES := src tests benchmarks examples docs/conf.py docs/_ext
# With everything installed, the demo needs nothing more.
DEMO_ENVIRONMENT := $(if $(wildcard .venv/.all),.venv/.all,.venv/.demo)

.DEFAULT_GOAL := help
.PHONY: help setup demo check format test test-quick test-all fault-matrix fuzz verify docs bench bench-cluster \
  bench-many bench-wide-area bench-flower bench-secure bench-lora wheel clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'

setup: .venv/.all  ## Make .venv and install everything into it, at pinned versions

demo: $(DEMO_ENVIRONMENT)  ## Compare eleven algorithms: two tables and a picture (about a minute on two cores)
	$(BIN)/episode demo

check: .venv/.all  ## Format, lint, types, import rules
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: .venv/.all  ## Format and fix what can be fixed
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

test: .venv/.all  ## All tests but the longest (about nine minutes on two cores)
	$(BIN)/pytest -n 2 -m "not long"

test-quick: .venv/.all  ## The quick tests (about 80 seconds on two cores)
	$(BIN)/pytest -n 2 -m "not slow and not long"

test-all: test  ## All tests, with faults and deployments (about forty minutes)
	$(BIN)/pytest -n 2 -m long

docs: .venv/.all  ## Build the site into build/site, without warnings; check links, spelling and prose
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs build/site
	$(BIN)/python docs/_ext/check_links.py build/site
	$(BIN)/python docs/_ext/prose.py

MINUTES := 30
fuzz: .venv/.all  ## Random commands, calls, folders and replies (30 minutes, or MINUTES=5)
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES)

fault-matrix: .venv/.all  ## What each fault does to a run, from the tests; OPTIONS=--tests names them
	$(BIN)/python tests/fault_matrix.py $(OPTIONS)

verify: .venv/.all  ## Prove the maths: every check, its figure, its bound
	$(BIN)/episode verify

bench: .venv/.bench  ## Speed and memory, as ratios within one run (about ten minutes)
	$(BIN)/python benchmarks/run.py

bench-cluster: .venv/.all  ## Two processes against two threads (a few minutes)
	$(BIN)/python benchmarks/cluster.py

bench-many: .venv/.all  ## 100,000 clients against 1,000, and the data of each rank (about seven minutes)
	$(BIN)/python benchmarks/many_clients.py
	$(BIN)/python benchmarks/rank_memory.py

bench-wide-area: .venv/.all  ## Time to a target over an emulated wide-area link (root, Linux)
	$(BIN)/python benchmarks/wide_area.py

bench-flower: .venv/.all  ## Time per exchange against Flower's FedAvg (a few minutes)
	$(BIN)/python benchmarks/flower.py

wheel: .venv/.all  ## Build wheel and sdist into dist/, and check them
	rm -rf build dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

bench-secure: .venv/.all  ## Time and bytes of a secure exchange against an open one (about a minute)
	$(BIN)/python benchmarks/secure.py

bench-lora: .venv/.all  ## Memory, time and files of a LoRA run against a plain loop (about a minute)
	$(BIN)/python benchmarks/lora.py

clean:  ## Remove the environment and everything that was made
	rm -rf .venv build dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: set PYTHON=/path/to/python3.11." >&2; exit 2; }
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing what the demo needs ..."
	$(PIP) -e .
	@touch $@

.venv/.all: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing everything ..."
	$(PIP) --upgrade pip
	$(PIP) -e '.[all]' --group dev
	@touch $@

.venv/.bench: pyproject.toml constraints.txt .venv/.all
	$(PIP) -e '.[bench]'
	@touch $@
