# Paceline: everything starts from here. A fresh machine needs Python 3.11, make and gcc.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2
# Half of the tests' time is waiting, for processes and timers: twice as many at a time as there are processors.
TESTS_AT_ONCE ?= 4

.PHONY: help install demo warm test quick check format docs site dist man bench allreduce exactness fuzz hostile drill soak conformance clean

help:
	@echo "make install    install into $(VENV), and nothing else"
	@echo "make demo       install into $(VENV), training jobs on an emulated cluster, without and with Paceline, and a report"
	@echo "make test       install into $(VENV), then checks and tests"
	@echo "make quick      checks, and tests without training processes: what to run after each edit"
	@echo "make check      formatting, lint, types, import rules"
	@echo "make docs       renew the generated parts of the pages in docs/"
	@echo "make site       the pages as a site, in out/site"
	@echo "make dist       a wheel in dist/, tried in a fresh environment without a compiler and without this folder"
	@echo "make man        manual pages from the help texts, in dist/man"
	@echo "make bench      speed as ratios against peers measured in the same run"
	@echo "make allreduce  the live speed table: all-reduce against Gloo and the line (root, quiet machine)"
	@echo "make exactness  the full seeded exactness runs (the tests run a part of them)"
	@echo "make fuzz       one million hostile packets through the interpreted core"
	@echo "make conformance  torch's own distributed tests over Gloo and over Paceline, compared"
	@echo "make drill      fifty drills in the simulator and live: faults on purpose, bits, steps and recovery checked"
	@echo "make soak       two jobs train for 20 minutes under random drills; bits, memory, threads, files and slots"
	@echo "make hostile    hostile datagrams, requests and files, while a job runs"

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Paceline needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	# This version of torch is the one with a small build for machines without a GPU.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]'
	@touch $@

check: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

docs: $(STAMP)
	$(BIN)/python -m paceline.describe docs/api.md docs/ARCHITECTURE.md docs/switch.md
	$(BIN)/python -m paceline.core.describe docs/protocol.md
	$(BIN)/python -m paceline.sim.describe docs/simulating.md

install: $(STAMP)

site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Otherwise several tests that start cold would each compile the same.
warm: $(STAMP)
	$(BIN)/python -m paceline.launch.warm agent switch worker planner simulator

test: $(STAMP)
	# The longest to compile has a processor; what checks types has the other, when that is done the rest is.
	$(MAKE) -j2 warm check
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder -m "not slow"

# Rooms that are tested within one process, and nothing that waits for a process to import torch.
QUICK = tests/core tests/schedule tests/sim tests/report tests/launch/test_jobs.py tests/launch/test_replan.py \
  tests/docs/test_protocol_page.py tests/docs/test_simulating_page.py tests/docs/test_switch_page.py \
  $(wildcard tests/test_*.py)

quick: check
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(QUICK)

demo: $(STAMP)
	rm -rf out/demo
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo/demo.py out/demo

bench: $(STAMP)
	$(BIN)/python -m benchmarks.simulator
	$(BIN)/python -m benchmarks.live_switch

allreduce: $(STAMP)
	$(BIN)/python -m benchmarks.allreduce

exactness: $(STAMP)
	$(BIN)/python -m tests.properties.exactness --seeds 200
	$(BIN)/python -m tests.properties.custody --runs 5000 --processes $(JOBS)
	$(BIN)/python -m benchmarks.exactness_live --runs 100

hostile: $(STAMP)
	$(BIN)/python -m tests.live.hostile --datagrams 1000000
	$(BIN)/python -m tests.live.hostile_control --requests 5000
	$(BIN)/python -m tests.hostile_files --runs 10000

drill: $(STAMP)
	$(BIN)/python -c "from paceline.cli import main; main()" drill examples/drills/*.toml

SOAK_MINUTES ?= 20
soak: $(STAMP)
	$(BIN)/python -m paceline.drill.soak --minutes $(SOAK_MINUTES) --out out/soak

conformance: $(STAMP)
	$(BIN)/python -m tests.torch.conformance

fuzz: $(STAMP)
	$(BIN)/python -m tests.core.fuzz --packets 1000000

dist: $(STAMP)
	rm -rf dist build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	rm -rf build
	$(BIN)/python -m tools.try_wheel dist/paceline-*.whl

man: $(STAMP)
	$(BIN)/python -m paceline.manual dist/man

clean:
	rm -rf $(VENV) build out .pytest_cache .mypy_cache .ruff_cache
