# fencepost: what one can do here. `make` alone explains itself.
#
# Everything runs in .venv, which is made on first use from a Python >= 3.11 and the versions in
# constraints.txt. A stamp file remembers what it was made from, so a second `make test` starts at once.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV  := .venv
BIN   := $(VENV)/bin
PY    := $(BIN)/python
STAMP := $(VENV)/.made-from-constraints

# The first interpreter that is new enough. Shims may exist for versions that are not installed: ask them.
PYTHON ?= $(shell for candidate in python3.11 python3 python3.12 python3.13 python; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$candidate && break; done)

# Spark needs Java (src/fencepost/spark/java.py says which): where there is none, one comes from PyPI.
EXTRAS = spark,connect,postgres$(shell $(PYTHON) src/fencepost/spark/java.py || echo ,java)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Tests start hundreds of Pythons, and pytest rewrites 800 modules: compile them once, not in every process.
unexport PYTHONDONTWRITEBYTECODE

# Arguments for the tests: make test TESTS=tests/wire ARGS="-x -k fence"
TESTS ?= tests
ARGS  ?=
# Test processes side by side. Every test takes its own free ports and folders, so any number is safe; many wait.
JOBS  ?= 3
# Files go to the test processes in the order of collection, which puts the long ones first (tests/conftest.py).
XDIST := --dist loadfile --no-loadscope-reorder

.PHONY: help
help: ## Show this page
	@echo "fencepost: exactly-once for Python data teams"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  make test TESTS=tests/wire ARGS='-x -k fence'     some tests only"
	@echo "  make bench QUICK=1 ONLY=small                     a short look at one load"

.PHONY: venv
venv: $(STAMP) ## Make .venv with everything that development needs

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "fencepost needs Python 3.11 or newer, and none was found."; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) (once)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "  installing what is pinned in constraints.txt; Spark alone is some 450 MB"
	@# pip itself first, because dependency groups came with pip 25.1; then the build backends (ours and pyspark's),
	@# so that their versions too come from constraints.txt.
	@$(PY) -m pip install --quiet --constraint constraints.txt --upgrade pip
	@$(PY) -m pip install --quiet --constraint constraints.txt hatchling editables setuptools
	@$(PY) -m pip install --quiet --constraint constraints.txt --no-build-isolation --group dev --editable '.[$(EXTRAS)]'
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Kill everything under a Spark pipeline, and audit what came out (ARGS="--seed 7")
	@$(BIN)/fencepost demo --picture build/demo.svg $(ARGS)

# Spark's classes, loaded and verified once for the JVMs of all tests. A JVM that it does not fit ignores it.
ARCHIVE := build/spark.jsa
$(ARCHIVE): $(STAMP)
	@echo "Making $@ (once)"
	@$(PY) -m tools.spark_archive

.PHONY: test
test: $(STAMP) $(ARCHIVE) ## Run the tests (needs nothing but PyPI)
	@FENCEPOST_HALF=1 $(PY) -m pytest $(TESTS) --ignore=tests/compat -n $(JOBS) $(XDIST) $(ARGS)

.PHONY: test-fast
test-fast: $(STAMP) ## Run the tests that need no Spark, no child processes and no matrices: a minute
	@FENCEPOST_HALF=1 $(PY) -m pytest $(TESTS) --ignore=tests/compat --fast -n $(JOBS) $(XDIST) $(ARGS)

# What runs on the broker, as opposed to Spark and the tools around it.
COMPILED_TESTS ?= $(addprefix tests/,base records log partition coordinator wire broker transactions foreign_clients simulation)

.PHONY: compile
compile: $(STAMP) ## Compile the hot path of the broker into build/compiled (needs a C compiler)
	@$(PY) -m tools.compile_hot_path

.PHONY: test-compiled
test-compiled: compile ## Run the tests of the broker again, with its hot path compiled
	@FENCEPOST_HALF=2 $(PY) -m pytest $(COMPILED_TESTS) -o pythonpath='build/compiled .' -m 'not interpreted' $(if $(CI),--hypothesis-seed=2) -n $(JOBS) $(XDIST) $(ARGS)

.PHONY: check
check: $(STAMP) ## Lint, format, types, the directions between the rooms, links and examples of the docs, where tests are
	@echo "ruff check";          $(BIN)/ruff check --quiet .
	@echo "ruff format --check"; $(BIN)/ruff format --quiet --check .
	@echo "mypy --strict";       $(BIN)/mypy
	@echo "lint-imports";        PYTHONPATH=src $(BIN)/lint-imports --no-logo
	@echo "links and examples";  $(PY) -m tools.check_docs
	@echo "places of tests";     $(PY) -m tools.check_tests

.PHONY: format
format: $(STAMP) ## Bring the code into the house format
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

.PHONY: compat
compat: $(STAMP) $(ARCHIVE) ## Run fencepost and Apache Kafka beside each other (needs Java and Maven)
	@missing=$$($(PY) -m tools.apache_kafka); test -z "$$missing" || { echo "make compat needs $$missing."; exit 1; }
	@$(PY) -m pytest tests/compat -n 2 $(XDIST) --timeout=300 $(ARGS)

.PHONY: bench
bench: $(STAMP) ## Measure fencepost, compiled where it can be, beside Apache Kafka and, where Go is, kfake (QUICK=1, ONLY=name, SIDES=fencepost, DOCS=1)
	@source=$${FENCEPOST_SRC:-$$($(PY) -m tools.compile_hot_path --or-source)}; \
	FENCEPOST_SRC=$$source $(PY) -m bench $(if $(QUICK),--quick) $(foreach name,$(ONLY),--only $(name)) $(if $(SIDES),--sides $(SIDES)) $(if $(DOCS),--write-docs) $(ARGS)

.PHONY: mutants
mutants: $(STAMP) ## Plant known bugs in a copy of the source: the tests must catch each (ONLY=word, CHANGED=1, DOCS=1; takes minutes)
	@$(PY) -m tools.mutants --jobs $(JOBS) $(foreach name,$(ONLY),--only $(name)) $(if $(CHANGED),--changed) $(if $(DOCS),--write-docs) $(ARGS)

.PHONY: histories
histories: $(STAMP) ## Random histories of a broker with seeds from the date, for SECONDS (300); a failure prints how to replay it
	@PYTHONPATH=src:. $(PY) -m tests.broker.histories --seconds $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED)) $(ARGS)

# The tests that crash or fail disk calls; in `make test` they take samples. Each file runs in one process.
EVERY_CALL := $(addprefix tests/,broker/crashes broker/controller/test_checkpoint_crashes.py broker/groups/test_partition_crashes.py \
	broker/storage/test_broker_layout_resizing.py cluster/parent/test_parent_crashes.py log/test_compaction.py \
	partition/test_partition_failed_steps.py transactions/test_kill.py cluster/processes/test_kill_points.py)

.PHONY: test-every-call
test-every-call: $(STAMP) ## Crash and fail every disk call, of which `make test` takes samples (before a change of storage is done)
	@FENCEPOST_EVERY_CALL=1 $(PY) -m pytest $(EVERY_CALL) --timeout 0 -n $(JOBS) --dist load $(ARGS)

.PHONY: chaos
chaos: $(STAMP) ## Kill, pause and move brokers under four copiers, and count every record (SEED=7, FAULTS=200)
	@PYTHONPATH=src:. $(PY) -m tests.cluster.chaos --faults $(or $(FAULTS),200) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: profile
profile: $(STAMP) ## Show where a commit and where a megabyte go in the broker
	@$(PY) -m bench.profile $(ARGS)

# The docs need neither Spark nor the clients of the tests; an environment that has everything serves as well.
DOCS_STAMP := $(VENV)/.made-for-docs
$(DOCS_STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "fencepost needs Python 3.11 or newer, and none was found."; exit 1; }
	@echo "Adding to $(VENV) what the docs need (once)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --constraint constraints.txt --upgrade pip
	@$(PY) -m pip install --quiet --constraint constraints.txt hatchling editables
	@$(PY) -m pip install --quiet --constraint constraints.txt --no-build-isolation --group docs --editable .
	@touch $@

.PHONY: docs
docs: $(DOCS_STAMP) ## Write the generated parts of docs/ again, and build the site into build/site
	@$(PY) -m tools.write_docs
	@$(PY) -m tools.list_cases
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "build/site/index.html; with search: $(PY) -m http.server --directory build/site --bind 127.0.0.1 8000"

.PHONY: wheel
wheel: $(STAMP) ## Build the wheel, compiled where it can be, and try it in a clean environment
	@rm -rf build/wheel && mkdir -p build/wheel
	@echo "1/4 the hot path of the broker"
	@source=$$($(PY) -m tools.compile_hot_path --or-source); \
	echo "2/4 the wheel"; \
	FENCEPOST_SRC=$$source $(PY) -m build --quiet --wheel --no-isolation --outdir build/wheel .
	@echo "3/4 a clean environment with the wheel and what it needs"
	@$(PYTHON) -m venv build/wheel/venv
	@build/wheel/venv/bin/python -m pip install --quiet --constraint constraints.txt build/wheel/*.whl
	@echo "4/4 trying it there"
	@env -u PYTHONPATH build/wheel/venv/bin/python tools/try_wheel.py
	@ls build/wheel/*.whl

# The tools of a release, in an environment of their own: they need much that development does not.
RELEASE       := build/release/venv
RELEASE_STAMP := $(RELEASE)/.made-from-constraints
$(RELEASE_STAMP): pyproject.toml constraints.txt
	@test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	@$(RELEASE)/bin/python -m pip install --quiet --constraint constraints.txt --group release
	@touch $@

.PHONY: release-check
release-check: $(RELEASE_STAMP) ## Build what would be published, and check files, metadata and how PyPI shows it
	@$(RELEASE)/bin/python -m tools.check_release

.PHONY: wheels
wheels: $(RELEASE_STAMP) ## Build the compiled wheels of every Python for this platform (on Linux it needs Docker)
	@$(RELEASE)/bin/python -m cibuildwheel --output-dir build/wheels

# The other Pythons that the metadata names.
PYTHONS ?= python3.12 python3.13 python3.14
PURE    := $(addprefix tests/,base wire records log partition coordinator)

.PHONY: test-pythons
test-pythons: ## Run the tests of the pure rooms on the other Pythons that are found here (PYTHONS=python3.13)
	@found=; for python in $(PYTHONS); do \
	$$python -c '' 2>/dev/null || { echo "$$python: not found"; continue; }; \
	found="$$found $$python"; \
	venv=build/pythons/$$(basename $$python); \
	echo "$$($$python --version): installing the core and the tests' libraries"; \
	test -x $$venv/bin/python || $$python -m venv $$venv; \
	$$venv/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip; \
	$$venv/bin/python -m pip install --quiet --constraint constraints.txt --group test .; \
	$$venv/bin/python -m pytest $(PURE) --quiet $(ARGS); done; \
	test -n "$$found" || { echo "none of $(PYTHONS) was found: nothing was tested"; exit 1; }

.PHONY: constraints
constraints: ## Pin the newest versions of everything again (look at the difference before keeping it)
	@$(PYTHON) tools/pin_versions.py

.PHONY: clean
clean: ## Remove what was made here, .venv included
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
