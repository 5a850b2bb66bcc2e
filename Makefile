# All there is to memorise: setup, demo, app, test, check, bench, screenshots, clean.
# One .venv for everything; a stamp file in it says how much of it is installed, so a second call is quick.

PYTHON ?= python3
BIN    := .venv/bin
# -qq: pip says nothing unless something is wrong.
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
BUILD  := pyproject.toml setup.py constraints.txt analyzer/trace/_scan.c
DB     := demo.duckdb
EAGER  := gpt2-prefill-bs1-s512
GRAPH  := gpt2-prefill-bs1-s512-graph
JOBS   ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup fleet-setup test-fleet demo app browser test check format-check lint types imports wheel bench screenshots clean

help:
	@echo "make demo         load recorded H200 runs and print where their time went (no GPU, no torch)"
	@echo "make app          the same runs in the web app"
	@echo "make setup        install everything for development into .venv (CPU build of torch)"
	@echo "make test         all tests"
	@echo "make test-fleet   tests of the fleet: PostgreSQL, S3, Ray (an environment of its own, .venv-fleet)"
	@echo "make check        format, lint, types, import contracts, wheel: with the tests, what CI runs"
	@echo "make bench        benchmarks.ingest: trace reading against json.load and HTA"
	@echo "make screenshots  pictures of the web app, into screenshots/"
	@echo "make clean        remove what the above made, .venv included"

# ---- set-up -------------------------------------------------------------------------------------

.venv/.created:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "No $(PYTHON) here: install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$$($(PYTHON) --version) is too old: Python 3.10 or newer is needed, for example make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.demo: .venv/.created $(BUILD)
	@echo "Installing the analyzer into .venv (under a minute) ..."
	@$(PIP) -e '.[analyzer]'
	@touch $@

.venv/.app: .venv/.created $(BUILD)
	@echo "Installing the analyzer and the web app into .venv (about a minute) ..."
	@$(PIP) -e '.[webapp]'
	@touch .venv/.demo $@

# The constraints hold torch to one version that has a small CPU build. Where the package index serves it
# with CUDA (gigabytes), let PIP_EXTRA_INDEX_URL name an index of CPU builds; see CONTRIBUTING.md.
.venv/.full: .venv/.created $(BUILD)
	@echo "Installing everything for development into .venv, a CPU build of torch included (minutes) ..."
	@$(PIP) -e '.[all,dev]'
	@touch .venv/.demo .venv/.app $@

setup: .venv/.full

# DuckDB of another version than .venv has, hence an environment of its own.
.venv-fleet/.full: $(BUILD) constraints-fleet.txt
	@echo "Installing the fleet's side into .venv-fleet (a minute or two) ..."
	@$(PYTHON) -m venv .venv-fleet
	@{ grep -v '^duckdb==' constraints.txt; cat constraints-fleet.txt; } >.venv-fleet/constraints.txt
	@.venv-fleet/bin/python -m pip install -qq --disable-pip-version-check -c .venv-fleet/constraints.txt -e '.[fleet-dev]'
	@touch $@

fleet-setup: .venv-fleet/.full

# ---- to look at ---------------------------------------------------------------------------------

$(DB): .venv/.demo $(wildcard analyzer/samples/*/manifest.json) schemas/sql/tables.sql
	@echo "Loading the sample runs, recorded on one NVIDIA H200, into $(DB) ..."
	@rm -f $(DB) $(DB).wal
	@$(BIN)/analyzer ingest --db $(DB) $(sort $(dir $(wildcard analyzer/samples/*/manifest.json)))

demo: $(DB)
	@echo
	@echo "==== Where does eager GPT-2 spend its time?   analyzer report $(EAGER) --db $(DB)"
	@echo
	@$(BIN)/analyzer report $(EAGER) --db $(DB)
	@echo
	@echo "==== What does a CUDA graph change?   analyzer compare $(EAGER) $(GRAPH) --db $(DB)"
	@echo
	@$(BIN)/analyzer compare $(EAGER) $(GRAPH) --db $(DB)
	@echo
	@echo "==== How host-bound is each run?   analyzer runs --db $(DB)"
	@echo
	@$(BIN)/analyzer runs --db $(DB)
	@echo
	@echo "The same in a browser: make app"

app: .venv/.app $(DB)
	@$(BIN)/webapp --db $(DB)

screenshots: .venv/.full browser
	HOSTBOUND_SCREENSHOTS=screenshots $(BIN)/python -m pytest tests/browser -m browser -q

# The system's Chromium, or one that Playwright has or can get. Without any the browser tests are skipped
# (under CI=true they fail), so this never stops make.
browser: .venv/.full
	@$(BIN)/python -m tests.browser.chromium >/dev/null 2>&1 || { \
	  echo "No Chromium here: asking Playwright for one ..."; \
	  $(BIN)/playwright install chromium >.venv/playwright.log 2>&1 || \
	  echo "Playwright could not get one (.venv/playwright.log says why)"; }

# ---- to trust -----------------------------------------------------------------------------------

test: .venv/.full browser
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

# Real PostgreSQL (Debian: apt-get install postgresql), S3 and Ray; none of them is touched otherwise.
test-fleet: .venv-fleet/.full
	HOSTBOUND_FLEET=1 .venv-fleet/bin/python -m pytest tests/fleet

check: format-check lint types imports wheel

format-check: .venv/.full
	$(BIN)/ruff format --check .

lint: .venv/.full
	$(BIN)/ruff check .

types: .venv/.full
	$(BIN)/pyright

imports: .venv/.full
	$(BIN)/lint-imports

wheel: .venv/.full
	@rm -rf build dist && mkdir dist
	@$(BIN)/python -m build --wheel --outdir dist . >dist/build.log 2>&1 || { cat dist/build.log >&2; exit 1; }
	@$(BIN)/python -m zipfile -l dist/*.whl | grep -q 'schemas/sql/tables.sql' || { \
	  echo "the wheel in dist/ lacks schemas/sql/tables.sql" >&2; exit 1; }
	@ls dist/*.whl

bench: .venv/.full
	$(BIN)/python -m benchmarks.ingest

clean:
	rm -rf .venv .venv-fleet build dist *.egg-info screenshots benchmarks/data
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f $(DB) $(DB).wal analyzer/trace/_scan*.so
	find schemas collector hybrid analyzer webapp tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
