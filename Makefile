# Every target does the set-up that it needs, from a bare clone: see scripts/environment.py.
#   PYTHON=...   the Python to make .venv with (else the newest suitable one that is found)
#   ARGS=...     passed on to the program that the target runs
#   BUDGET_S=... seconds that `make soak` lets the fuzz body run, then the simulation, then hostile user code, then
#                random topologies on Spark
#   TREES=...    trees that `make soak` lets come and go
#   VERSIONS=... releases of Spark for `make spark-versions`
#   OUTAGES=...  outages of each broker that `make soak` lets happen
#   KILLS=...    processes that `make soak` kills under a streaming acker on Spark
#   JOB_KILLS=.. owners, workers, followers, brokers, servers of replies that it kills each, with Celery on two brokers

PYTHON ?=
VERSIONS ?= 4.0 4.1 4.2
LOWEST_SPARK = 4.0
ARGS ?=
BUDGET_S ?= 600
TREES ?= 20000000
KILLS ?= 20
JOB_KILLS ?= 100
OUTAGES ?= 40
SETUP = PYTHON="$(PYTHON)" sh scripts/setup.sh
IN_ENV = sh scripts/in_env.sh
PYTEST = sh scripts/pytest.sh

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-all quick flaky spark-versions sanitize soak mutants bench screenshots docs build
.PHONY: lint format doctor wheel release-check clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run:  ## word count, a topology on Spark, until every line is acked or given up (ARGS="--input DIR", ARGS=--help)
	@$(SETUP) run
	@$(IN_ENV) python examples/wordcount.py $(ARGS)

test:  ## quick linters, and at least one test of each promise (ARGS="-k ids" is passed on to pytest)
	@$(SETUP) test
	@$(IN_ENV) sh scripts/test.sh $(ARGS)

test-slow:  ## what `make test` leaves out, but for make soak: types, combinations, kills, stores, the lowest Spark
	@$(SETUP) test
	@$(IN_ENV) sh scripts/test.sh --slow $(LOWEST_SPARK) $(ARGS)

test-all: test test-slow  ## both

flaky:  ## tests again and again beside busy loops, with stalls, in random order (ARGS="--rounds 20 -k name")
	@$(SETUP) test
	@$(IN_ENV) python scripts/flaky.py $(ARGS)

spark-versions:  ## a part of the tests of acker.spark on other releases of Spark, VERSIONS="4.0 4.1 4.2"
	@$(SETUP) test
	@$(IN_ENV) python scripts/spark_versions.py $(VERSIONS) $(ARGS)

quick:  ## the tests that need neither Spark nor servers
	@$(SETUP) quick
	@$(IN_ENV) $(PYTEST) --ignore=tests/spark -m "not spark and not server and not slow" $(ARGS)

sanitize:  ## the quick tests with the native module under AddressSanitizer and UBSan
	@ACKER_SANITIZE=address,undefined $(SETUP) quick
	@ACKER_SANITIZE=address,undefined $(IN_ENV) sh scripts/sanitize.sh $(ARGS)

soak:  ## tests that repeat; flat memory, TREES=20000000; fuzz, simulation, Spark, BUDGET_S=600 s each; KILLS=20
	@$(SETUP) test
	@$(IN_ENV) $(PYTEST) -m soak
	@$(IN_ENV) python scripts/flat_memory.py --trees $(TREES)
	@$(IN_ENV) python scripts/native.py soak --seconds $(BUDGET_S) $(ARGS)
	@$(IN_ENV) python -m tests.torture.simulation --seconds $(BUDGET_S)
	@$(IN_ENV) python -m tests.torture.simulation --seconds $(BUDGET_S) --batches
	@$(IN_ENV) python -m tests.torture.hostile --seconds $(BUDGET_S)
	@$(IN_ENV) python -m tests.torture.kills --kills $(KILLS)
	@$(IN_ENV) python -m tests.torture.kills --kills $(KILLS) --store s3
	@$(IN_ENV) python -m tests.torture.kills --kills $(KILLS) --store hdfs
	@$(IN_ENV) python -m tests.torture.topology_kills --kills $(KILLS)
	@$(IN_ENV) python -m tests.torture.topology_kills --kills $(KILLS) --store s3
	@$(IN_ENV) python -m tests.torture.topology_kills --kills $(KILLS) --store hdfs
	@$(IN_ENV) python -m tests.spark.topologies.random_runs --seconds $(BUDGET_S)
	@$(IN_ENV) python -m tests.torture.outages --outages $(OUTAGES)
	@$(IN_ENV) python -m tests.torture.shipping
	@$(IN_ENV) python -m tests.torture.remote_trees --trees 100000
	@$(IN_ENV) python -m tests.torture.job_kills --kills $(JOB_KILLS)

mutants:  ## put plausible bugs into copies of the native headers: the tests must catch each (ARGS="part of a name")
	@$(SETUP) build
	@$(IN_ENV) python scripts/native.py mutants $(ARGS)

bench:  ## times by pytest-benchmark, then ratios as a table and in build/bench.json (ARGS="--quick --only ingest")
	@$(SETUP) bench
	@$(IN_ENV) python -m pytest benchmarks --quiet --benchmark-enable --benchmark-timer=time.process_time \
	    --benchmark-columns=median,iqr,rounds --benchmark-sort=name
	@$(IN_ENV) python -m benchmarks.suite --json build/bench.json $(ARGS)

screenshots:  ## the pictures of the live page in docs/screenshots, by the browser of the tests
	@$(SETUP) test
	@$(IN_ENV) python -m tests.ui.screenshots

docs:  ## the site, in build/docs: drawings and tables of results brought up to date, warnings are errors
	@$(SETUP) docs
	@$(IN_ENV) python docs/tools/generate.py
	@$(IN_ENV) python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/docs
	@echo "file://$(CURDIR)/build/docs/index.html"

build:  ## .venv with the package in it, editable, and its native module compiled
	@$(SETUP) build

lint:  ## ruff, mypy, stubtest, cython-lint, clang-format, codespell, zizmor, actionlint
	@$(SETUP) lint
	@$(IN_ENV) sh scripts/lint.sh

format:  ## let ruff and clang-format rewrite the sources
	@$(SETUP) lint
	@$(IN_ENV) sh scripts/lint.sh --fix

doctor:  ## versions, native module, JDK, Spark, one task on each executor
	@$(SETUP) run
	@$(IN_ENV) acker doctor $(ARGS)

wheel:  ## sdist, a wheel from it for every Python that is here, checks and tests of each (ARGS="--no-tests", "config")
	@$(SETUP) release
	@PYTHON="$(PYTHON)" $(IN_ENV) python scripts/wheel.py $(ARGS)

release-check:  ## all that a release needs: facts, wheel, docs, test-all, run, sanitize (ARGS="--tag v0.1.0")
	@$(SETUP) release
	@$(IN_ENV) python scripts/release.py check $(ARGS)

clean:  ## remove what builds and tools left behind; .venv stays
	rm -rf build dist wheelhouse spark-warehouse src/*.egg-info
	rm -rf .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f src/acker/_core.*.so src/acker/_flow.*.so src/acker/_handles.*.so ext/acker/*.cpp ext/acker/tests/_*.cpp
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv
	rm -rf .venv
