# Paceline: everything starts from here. A fresh machine needs Python 3.11, make and gcc.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2

.PHONY: help demo test check format docs bench exactness fuzz clean

help:
	@echo "make demo       install into $(VENV), run a comparison of policies, write a report"
	@echo "make test       install into $(VENV), then checks and tests"
	@echo "make check      formatting, lint, types, import rules"
	@echo "make docs       renew the generated parts of the pages in docs/"
	@echo "make bench      speed as ratios against peers measured in the same run"
	@echo "make exactness  the full seeded exactness run (the tests run a part of it)"
	@echo "make fuzz       one million hostile packets through the interpreted core"

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Paceline needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	# This version of torch is the one with a small build for machines without a GPU.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]'
	@touch $@

check: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

docs: $(STAMP)
	$(BIN)/python -m paceline.dataplane.describe docs/protocol.md
	$(BIN)/python -m paceline.sim.describe docs/simulating.md

test: check
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

demo: $(STAMP)
	$(BIN)/paceline simulate examples/simulate/quick.toml --html out/demo.html
	@echo
	@echo "The report, to be opened in a browser: $(CURDIR)/out/demo.html"

bench: $(STAMP)
	$(BIN)/python -m benchmarks.simulator

exactness: $(STAMP)
	$(BIN)/python -m tests.properties.exactness --seeds 200

fuzz: $(STAMP)
	$(BIN)/python -m tests.dataplane.fuzz --packets 1000000

clean:
	rm -rf $(VENV) build out .pytest_cache .mypy_cache .ruff_cache
