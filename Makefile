# `make demo` and `make test` each work as the first command on a fresh machine: both make .venv when it is missing or
# older than pyproject.toml. The tests and the demo use no network.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MUTANTS ?= 150
SEED ?= 0
INSTALLED := $(VENV)/.installed

export HF_HUB_OFFLINE ?= 1

.PHONY: demo test test-slow fuzz mutants bench studies audit docs lint format clean
.DEFAULT_GOAL := demo

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python -m pipeline demo

# Hundreds of tests start Python, which reads bytecode even where the environment says not to write it.
test test-slow: export PYTHONDONTWRITEBYTECODE =

# A worker a core, each with one thread: small models gain nothing from more. A file's tests stay on one worker, or each
# would make the file's costly fixtures for itself; files with long ones begin first.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# What takes minutes on end: the whole demo; a study of 24 cells on a Ray cluster of two nodes, of which one ends; 300
# kills and 153 disturbances of real commands; a server under abuse. And what tests tools or repeats a test:
# benchmarks, the pages' every part, the cases and products of which make test runs a part (@pytest.mark.covering).
test-slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m long

# The fuzz at random, so many cases over all its properties; FUZZ="tests/fuzz/test_fuzz_exports.py" for some. What fails is
# printed with its input; the same FUZZ_SEED draws the same cases.
fuzz: FUZZ_CASES ?= 10000
fuzz: FUZZ_SEED ?= $(shell date +%s)
fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 FUZZ_CASES=$(FUZZ_CASES) $(BIN)/python -m pytest -n auto --timeout 3600 --hypothesis-seed $(FUZZ_SEED) $(or $(FUZZ),tests/fuzz)

# Single faults in the files that matter, made by Cosmic Ray: prints those that no test notices. A sample of so many MUTANTS
# with that SEED, in all the files or in some (FILES="pipeline/stats/paired.py pipeline/runs/sources.py").
mutants: $(INSTALLED)
	$(BIN)/python -m tests.mutants $(FILES) --count $(MUTANTS) --seed $(SEED)

# Tables of speed and memory beside what one would use instead; BENCH="stage_one --backbone DIR --data DIR" for some.
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks $(BENCH)

# Shipped studies, one after the other, each with the records of its runs in an archive; what is finished is not
# trained again. make studies BACKBONE=DIR DATA=DIR, with JOBS=4 processes, or STUDIES="few-rows" alone.
STUDIES ?= few-rows all-rows fusion-ladder fusion-repeat fusion-parts fusion-targets pfeiffer-2021 frohmann-2024 mao-2022
STORE ?= adapters_store
REPORTS ?= reports
JOBS ?= 1
studies: $(INSTALLED)
	@: $${BACKBONE:?a folder or an id of the Hub} $${DATA:?the folder with the tasks}
	set -e; for study in $(STUDIES); do \
	  $(BIN)/python -m pipeline compare --study $$study --backbone "$(BACKBONE)" --data "$(DATA)" \
	    --store "$(STORE)" --reports "$(REPORTS)" --jobs $(JOBS); \
	  $(BIN)/python -m pipeline runs export "$(REPORTS)/$$study/runs.tar.xz" --study $$study --lean \
	    --store "$(STORE)" --reports "$(REPORTS)"; \
	done

# Fails for an advisory about an installed dependency that SECURITY.md does not assess.
audit: $(INSTALLED)
	$(BIN)/pip-audit $$(grep -oE 'CVE-[0-9]+-[0-9]+' SECURITY.md | sed 's/^/--ignore-vuln /')

# The pages of docs/ as a web site in build/docs; a broken link or a page outside the navigation is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.docs: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
