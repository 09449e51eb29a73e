# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TESTS ?= tests examples
ARGS ?=
WORKERS ?= 2
SEEDS ?= 50
POINTS ?= 300
MINUTES ?= 10
STORM_S ?= 60
MEMBERS ?= 50
WHEELHOUSE ?= .cache/wheelhouse

# The tests and the demo start a thousand Pythons: each of them would compile all it imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup style format types tidy unit test slow sim kill-points conformance suites differences chaos storm soak cluster e2e slice bench bench-functions bench-replay hops demo drill wheelhouse docs check lock clean
.DEFAULT_GOAL := help

help:            ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## environment in .venv, with a Java runtime where the machine has none

$(STAMP): requirements/uv.lock requirements/build.lock requirements/dev.lock requirements/java.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Catchwater needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name one: make setup PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/build.lock -r requirements/dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	$(BIN)/catchwater doctor --check java >/dev/null 2>&1 || $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/java.lock
	$(BIN)/catchwater doctor --warm
	@touch $@

lock:            ## resolve the dependencies again (hashed, no registry named)
	for group in uv build java; do \
	  $(BIN)/uv pip compile -q -U --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --no-header --no-annotate requirements/$$group.in -o requirements/$$group.lock || exit 1; done
	$(BIN)/uv pip compile -q -U --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate pyproject.toml --extra spark --extra fast --extra postgres --extra s3 --extra kafka --extra iceberg --extra tables --extra avro --extra oauth --group test --group tidy -o requirements/dev.lock

style: $(STAMP)  ## formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(STAMP) ## mend the formatting
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(STAMP)  ## mypy --strict on src
	$(BIN)/mypy

tidy: style types ## what can be enforced: style, types, layers, the repository against STYLE.md
	$(BIN)/python -m pytest -q tests/test_tidy.py

unit: $(STAMP)   ## pure code only (seconds)
	$(BIN)/python -m pytest -q tests/unit

test: $(STAMP)   ## every test a newcomer should run (minutes; real clients, real Spark)
	$(BIN)/python -m tests.again -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=20 --durations-min=8 $(TESTS)

slow: $(STAMP)   ## the long forms of the tests, which `make test` leaves out
	$(BIN)/python -m pytest -m slow $(TESTS)

sim: $(STAMP)    ## three brokers, clients and faults on virtual time, SEEDS seeds
	SEEDS=$(SEEDS) $(BIN)/python -m pytest -q -n $(WORKERS) tests/simulation

kill-points: $(STAMP) ## kill -9 of a real broker before the n-th system call, POINTS times
	POINTS=$(POINTS) $(BIN)/python -m pytest -q tests/conformance/test_kill_points.py

conformance: $(STAMP) ## eight Kafka clients through the same steps (CLIENT=java,kcat AGAINST=catchwater|kafka STEPS=group-* SECURITY=sasl_ssl-scram-512)
	$(BIN)/python -m conformance --client "$(CLIENT)" --against $(or $(AGAINST),catchwater) --steps "$(or $(STEPS),*)" --security "$(SECURITY)"

suites: $(STAMP) ## test suites that others wrote, against a fresh broker each (SUITE="kafka_python command_line" AGAINST=catchwater|kafka)
	$(BIN)/python -m conformance.suites $(addprefix --suite ,$(SUITE)) --against $(or $(AGAINST),catchwater)

differences: $(STAMP) ## the same raw requests to Apache Kafka and to us, replies compared field by field (ARGS="--api Fetch", ARGS=--security)
	$(BIN)/python -m conformance.differ $(ARGS)

chaos: $(STAMP)  ## three brokers over PostgreSQL and S3, MINUTES of kills, pauses and failing stores (SEED=, WAL=)
	MINUTES=$(MINUTES) $(BIN)/python -m benchmarks.chaos

storm: $(STAMP)  ## MEMBERS members join and leave a group every second for STORM_S seconds, by both protocols
	STORM_S=$(STORM_S) MEMBERS=$(MEMBERS) $(BIN)/python -m benchmarks.storm

soak: $(STAMP)   ## MINUTES of steady load: memory, descriptors, objects and catalog rows stay flat
	MINUTES=$(MINUTES) $(BIN)/python -m benchmarks.soak

cluster: $(STAMP) ## drivers on hosts that are cut off (network namespaces: root, iproute2), and Spark's standalone cluster
	$(MAKE) slow TESTS="tests/e2e/test_hosts.py tests/e2e/test_cluster.py tests/e2e/test_cluster_lives.py"

e2e: $(STAMP)    ## real Spark
	KILLS=20 $(BIN)/python -m pytest $(if $(filter command%,$(origin TESTS)),$(TESTS),tests/e2e)

slice: $(STAMP)  ## some of the long forms, as CI does after `make check`: those of COMMIT, or SLICE=name (all, none)
	COMMIT=$(COMMIT) SLICE=$(SLICE) $(BIN)/python -m tests.slices run

bench: $(STAMP)  ## every claim beside its peer; writes benchmarks/results/*.json
	$(BIN)/python -m benchmarks $(ARGS)

bench-functions: $(STAMP) ## the same keyed function here and on five peers (PEERS=, KEYS=, ROUNDS=)
	$(BIN)/python -m benchmarks functions

bench-replay: $(STAMP) ## replay beside Spark's Kafka connector, and beside live traffic
	$(BIN)/python -m benchmarks decoder replay replay_live

hops: $(STAMP)   ## how many files one Produce, Fetch, EndTxn and pipeline start pass through (ARGS="--files --only requests")
	$(BIN)/python -m benchmarks.hops $(ARGS)

demo: $(STAMP)   ## the main job, killed and restored, with a verdict: make demo ARGS="--data FILE.csv --json"
	@$(BIN)/catchwater demo $(ARGS)

drill: $(STAMP)  ## rehearse failures against a budget: make drill ARGS="run older-checkpoint", ARGS="all --json"
	@$(BIN)/catchwater drill $(or $(ARGS),list)

wheelhouse: $(STAMP) ## all packages that an installation without a network needs, in WHEELHOUSE
	mkdir -p $(WHEELHOUSE)
	$(BIN)/uv pip compile -q --extra spark --constraint requirements/dev.lock --generate-hashes --no-header --no-annotate pyproject.toml -o $(WHEELHOUSE)/requirements.txt
	$(BIN)/python -m pip wheel --quiet --require-hashes -r $(WHEELHOUSE)/requirements.txt --wheel-dir $(WHEELHOUSE)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEELHOUSE) .

docs: $(STAMP)   ## regenerate what is generated (protocol coverage, BENCHMARKS.md)
	$(BIN)/python -m docs.generate

check: style types test demo ## what CI runs first (`make test` holds the rest of `make tidy`)

clean:           ## forget the environment and the caches
	rm -rf $(VENV) .cache .java .mypy_cache .ruff_cache .pytest_cache .hypothesis
