# `make test` works from a fresh clone on a machine that has only Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DATA ?= data

.DEFAULT_GOAL := help
.PHONY: help setup train results bench lint types unit test mutants clean

help:  ## what there is to make
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort

setup: $(INSTALLED)  ## a virtual environment with everything in it

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

train: setup  ## the default job: handwritten digits at ε = 8
	$(BIN)/gep-train

results: setup  ## the tables of the paper in docs/results: runs what is missing, on data from DATA=directory
	$(BIN)/python -m recipes.results --data-directory $(DATA)

bench: setup  ## seconds and memory of a private step, beside what a user would pick instead; for an idle machine
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.profile_step
	$(BIN)/python -m benchmarks.scaling

lint: setup  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## static types
	$(BIN)/mypy

unit: setup  ## the tests alone
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: lint types unit  ## style, types and tests

mutants: setup  ## plants 28 bugs that break privacy, and shows that a test fails for each
	$(BIN)/python -m tests.planted_bugs

clean:  ## forget the virtual environment and the caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache dist
