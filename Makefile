# Everything starts from a clean clone with nothing but Python (3.11 or newer) and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that share the test files: one more than two cores, because some tests wait.
WORKERS ?= 3
PYTEST_ARGS ?=
# Ends every process of a test run and removes its temporary files, also after Ctrl-C.
SUPERVISE := $(BIN)/python tests/supervise.py
PYTEST := $(SUPERVISE) $(BIN)/python -m pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Test processes share compiled bytecode: without it each one compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help .venv demo test test-fast test-slow lint format docs dist bench lock clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       train SAC on Pendulum-v1 (about a minute on two cores)"
	@echo "make test       everything a change must pass: imports, style, types, tests"
	@echo "make test-fast  the daily loop: no whole agents, Ray, processes, MuJoCo or Atari"
	@echo "make test-slow  learning runs, long fault runs, full matrices"
	@echo "make lint       ruff, the type checker and the import contract"
	@echo "make format     let ruff mend what it can"
	@echo "make docs       build the documentation site into site/"
	@echo "make dist       build what a release publishes into dist/"
	@echo "make bench      speed against the peers (they get an environment of their own)"
	@echo "make lock       pin the dependencies anew in requirements.lock"

.venv: $(STAMP)

# The stamp is touched last: an interrupted installation is repeated, a finished one is not.
# --no-deps: the lock file is complete. Without it pip looks for newer releases of packages that are
# required with an extra (etils[epath]), finds one that is not pinned, and fails.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Understudy needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	$(BIN)/understudy train

test: lint
	$(PYTEST) -n $(WORKERS) --dist loadscope $(PYTEST_ARGS)

# The last -m wins over the one in pyproject.toml.
test-fast: $(STAMP)
	$(PYTEST) -n $(WORKERS) --dist loadscope $(PYTEST_ARGS) \
		-m "not (slow or agents or ray or processes or mujoco or atari)"

test-slow: $(STAMP)
	UNDERSTUDY_TEST_COMPILER=default $(PYTEST) -n $(WORKERS) --dist loadscope -m slow --timeout 0 \
		$(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/lint-imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a link that leads nowhere is an error. View it: $(BIN)/python -m http.server -d site
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The player has no source distribution, which would lack the modules above its directory.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m build --no-isolation --wheel --outdir dist player
	$(BIN)/twine check --strict dist/*

bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py

# Exact versions and hashes, no addresses: where packages come from is the machine's affair.
lock:
	$(BIN)/pip-compile --quiet --extra dev --extra docs --extra mujoco --extra box2d --extra onnx \
		--extra optuna --extra video --extra tensorboard --extra atari --extra minatar --extra brax \
		--extra ray --generate-hashes --allow-unsafe \
		--strip-extras --no-annotate --no-header --no-emit-index-url --no-emit-trusted-host \
		--no-emit-find-links --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .jax_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist site
