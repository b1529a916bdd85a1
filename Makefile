# `make test` works from a fresh clone on a machine that has only Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data

.DEFAULT_GOAL := help
.PHONY: help setup train results bench audit docs lint types contracts unit quick test mutants clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort

setup: $(VENV)/.everything  ## create a virtual environment with everything in it

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# `make train` installs what it runs and no more; tests, launchers and browsers come with `setup`.
$(VENV)/.example: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[example]'
	@touch $@

$(VENV)/.everything: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.example

train: $(VENV)/.example  ## run the default job: handwritten digits at ε = 8
	$(BIN)/gep-train

results: setup  ## fill the tables in docs/results: run what is missing, on data from DATA=directory
	$(BIN)/python -m recipes.results --data-directory $(DATA)

bench: setup  ## time and memory of a private step beside the alternatives (use an idle machine)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.scaling

audit: $(VENV)/.example  ## lower bounds on ε, measured, beside the claims of every mechanism (audit.html)
	$(BIN)/gep-audit mechanism=gep,bgep,gp,spectral privacy.epsilon=1,2,8 privacy.delta=1e-5 --parts release,run --html audit.html
	$(BIN)/gep-audit mechanism=gep,bgep,gp,spectral trainer.max_epochs=5 --parts training --canaries 300

docs: setup  ## build the site from docs/ into site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: setup  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## check static types
	$(BIN)/mypy

contracts: setup  ## check that the layers hold and that nothing is dead
	$(BIN)/lint-imports
	! $(BIN)/vulture | grep -v '^tests/'  # unused names of the package, the recipes and the benchmarks

unit: setup  ## run all tests
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

quick: setup  ## run the quick tests, in under two minutes
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow and not browser and not distributed"

test: lint types contracts unit  ## check style, types and layers, and run all tests

mutants: setup  ## plant 60 bugs that break privacy, and show that a test fails for each
	$(BIN)/python -m tests.planted_bugs

clean:  ## delete the virtual environment and the caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache dist site
