# `make help` lists the commands; everything runs in .venv, which is made when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Versions that were tested together; `make constraints` writes it. The bounds in pyproject.toml stay open.
CONSTRAINTS := .ci/constraints.txt
DOCS := build/docs-venv
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)
# A worker more than most machines have cores, for tests also wait; each has a server of its own. On a server that was
# named they would get in each other's way.
WORKERS := $(if $(PGSTATE_TEST_DSN),,-n 3 --dist worksteal)
PYTEST := $(BIN)/python -m pytest $(WORKERS)
# What is committed, without binary files.
FILES := $(filter-out %.png %.zdict %.woff2 %.gif,$(wildcard $(shell git ls-files 2>/dev/null)))
# Tests that `make test-servers` repeats on other versions of PostgreSQL. `make test-slow` runs the slow ones of them.
MARKS ?= not long and not once

# Each worker and each of the tests' processes would compile the tests and the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo studio serve test test-slow test-all test-versions test-servers test-newest test-package test-browser chat chaos fuzz constraints check lint bench bench-quick bench-queue bench-memory bench-pages bench-server screenshots docs clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# An isolated build would take the newest setuptools.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@echo "Setting up $(VENV); this takes half a minute, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) setuptools && $(PIP) --no-build-isolation -e '.[dev,deepagents]' && touch $@

demo: $(STAMP) ## Kill an agent in the middle of a superstep, resume it, fork it (about a minute); MODEL=provider:name for a real model
	@$(BIN)/python -m examples.demo $(if $(MODEL),--model $(MODEL))

studio: $(STAMP) ## Look at an agent in LangGraph Studio: `langgraph dev` on examples/studio, with the embedded PostgreSQL
	@cd examples/studio && LANGGRAPH_NO_VERSION_CHECK=1 LANGGRAPH_CLI_NO_ANALYTICS=1 LANGSMITH_TRACING=false \
		PGSTATE_PATH=$(CURDIR)/.pgstate $(abspath $(BIN))/langgraph dev --no-browser

serve: $(STAMP) ## Serve the same agent by `pgstate serve`, with the embedded PostgreSQL alone
	@cd examples/studio && PGSTATE_DSN= ../../$(BIN)/pgstate serve

chat: ## Build the chat page of examples/chat, and serve it on http://127.0.0.1:5173, for `make serve`; needs npm
	@cd examples/chat && npm start

test: $(STAMP) ## Run the daily tests on the embedded PostgreSQL, or on PGSTATE_TEST_DSN
	@$(PYTEST)

test-slow: $(STAMP) ## Run the slow tests, before a change of the queue or the saver; whole programs, too, with MARKS='not long'
	@$(PYTEST) -m 'slow and $(MARKS)'

test-all: $(STAMP) ## Run all tests, with all of Hypothesis' examples
	@PGSTATE_TEST_ALL=1 $(PYTEST) -m ''

test-versions: $(STAMP) test-servers ## Run the tests on PostgreSQL 16 and 15, and some with the lowest versions of all dependencies
	@$(BIN)/python tests/run_versions.py lowest $(WORKERS)

test-servers: $(STAMP) ## Run the tests on PostgreSQL 16, and on Debian's 15 where it is installed; some with MARKS=smoke
	@PGSTATE_TEST_VERSION=16 $(PYTEST) -m '$(MARKS)'
	@if test -d /usr/lib/postgresql/15; then PGSTATE_TEST_VERSION=15 $(PYTEST) -m '$(MARKS)'; fi

test-browser: $(STAMP) ## Run the JavaScript clients on the server; needs Node, npm and Chromium
	@$(PYTEST) -m '' tests/acceptance/test_chat.py

chaos: $(STAMP) ## Inject faults for an hour and verify everything: SEED=7 FAULTS=5000 MINUTES=60 WITHOUT=clock,disk QUEUE=1 TENANT=1 ENCRYPT=1 KEEP=directory
	@PYTHONPATH=tests:. $(BIN)/python -m chaos --seed $(or $(SEED),1) --faults $(or $(FAULTS),5000) \
		--minutes $(or $(MINUTES),60) --without '$(WITHOUT)' $(if $(QUEUE),--queue) $(if $(TENANT),--tenant) $(if $(ENCRYPT),--encrypt) $(if $(KEEP),--keep $(KEEP))

fuzz: $(STAMP) ## Read a million damaged and forged stored bytes, restore forged archives, and send 100,000 such requests: INPUTS=1000000 ARCHIVES=2000 REQUESTS=100000 SEED=1 ONLY=state
	@PYTHONPATH=tests:. $(BIN)/python -m fuzz --inputs $(or $(INPUTS),1000000) --requests $(if $(ONLY),0,$(or $(REQUESTS),100000)) \
		--archives $(if $(ONLY),0,$(or $(ARCHIVES),2000)) --seed $(or $(SEED),1) $(if $(ONLY),--only '$(ONLY)')

lint: $(STAMP) build/.bandit build/.secrets ## ruff, mypy --strict, import-linter, bandit, a scan for secrets, pip-audit
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python .ci/audit.py $(CONSTRAINTS)

# Both read only the files that changed since they last passed.
build/.bandit: $(filter langgraph_pgstate/%.py,$(FILES)) | $(STAMP)
	@$(BIN)/bandit --quiet --configfile pyproject.toml $? && mkdir -p build && touch $@

# A line that only looks like a secret ends in `# pragma: allowlist secret`.
build/.secrets: $(FILES) | $(STAMP)
	@$(BIN)/detect-secrets-hook --no-verify --baseline .ci/secrets.json $? && mkdir -p build && touch $@

constraints: $(STAMP) ## Write the newest versions that fit together to .ci/constraints.txt; run all tests before you commit it
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-annotate --extra dev --extra deepagents \
		--custom-compile-command 'make constraints' --output-file $(CONSTRAINTS) pyproject.toml >/dev/null

test-newest: $(STAMP) ## Run some tests with the newest versions of all dependencies, and print how they differ
	@$(BIN)/python tests/run_versions.py newest $(WORKERS)

test-package: $(STAMP) ## Build wheel and sdist, install them in fresh environments, and run the commands of each extra
	@$(PYTEST) -m '' tests/acceptance/test_package.py

check: lint test ## What a commit has to pass

bench: $(STAMP) ## Measure against the official saver; writes benchmarks/results/
	@$(PIP) --no-build-isolation -e '.[bench]'
	@$(BIN)/python -m benchmarks

bench-quick: $(STAMP) ## The same in two minutes, with fewer rounds; writes nothing to the README
	@$(PIP) --no-build-isolation -e '.[bench]'
	@$(BIN)/python -m benchmarks --quick

bench-queue: $(STAMP) ## Measure durable runs beside procrastinate, pgqueuer and DBOS; QUICK=--quick for two minutes
	@$(PIP) --no-build-isolation -e '.[bench-queue]'
	@$(BIN)/python -m benchmarks.queue $(QUICK)

bench-server: $(STAMP) ## Measure the server beside `langgraph dev`, with our saver and its own (fifteen minutes)
	@$(BIN)/python -m benchmarks.serving
	@$(BIN)/python -m benchmarks.holding

bench-memory: $(STAMP) ## Measure memory (1,000,000) and files of agents beside LangGraph's PostgresStore (forty minutes)
	@$(BIN)/python -m benchmarks.files
	@$(BIN)/python -m benchmarks.memory

bench-pages: $(STAMP) ## Measure the pages of the inspector on 100,000 threads and 1,000,000 spans (five minutes)
	@$(BIN)/python -m benchmarks.pages

screenshots: $(STAMP) ## Take the screenshots of the inspector that the documents show, with Chromium
	@$(BIN)/python -m benchmarks.screenshots

# Apart from .venv: tests do not need its packages.
$(DOCS)/.installed: pyproject.toml $(CONSTRAINTS)
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) -e '.[docs]' && touch $@

docs: $(DOCS)/.installed ## Build the site of the documents in build/site; dead links and references fail
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict

clean: ## Remove the virtual environment, the embedded data and caches
	rm -rf $(VENV) build .pgstate examples/studio/.langgraph_api .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
