# make demo | make test | make test-slow | make llm | make lint | make docs   Each sets up .venv first, and only when the requirements have changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Only errors. On a machine with several package indexes, pip has a warning for each package.
PIP := -m pip install -qq --disable-pip-version-check
# A file's tests stay together: they share worker processes and ladders. More than four find no files to do.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Without bytecode each of the processes that tests start would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow test-libraries test-servers test-slurm llm lint docs release clean
help:
	@echo "make demo       set up .venv, then train a tiny model through the whole loop: no GPU, no network"
	@echo "make test       set up .venv, then run the fast tests: at most four minutes on two cores"
	@echo "make test-slow  set up .venv, then run the slow tests: faults, attacks on all tasks, launchers, whole runs"
	@echo "make test-libraries  set up .venv-trl, -verifiers, -verl, -skyrl and -core (6 GB), then try TRL, OpenEnv, verifiers, verl, SkyRL, reasoning-core"
	@echo "make test-servers  set up .venv-llm, then try a real vLLM, transformers serve, and LLAMA_SERVER=PATH"
	@echo "make test-slurm    set up .venv, then try the script for SLURM on a real SLURM (as root, with slurm-wlm and munge)"
	@echo "make llm        set up .venv-llm, to train a real language model on the processor (examples/train/README.md)"
	@echo "make lint       set up .venv, then ruff (lint and format) and mypy"
	@echo "make docs       set up .venv, then build the documentation site in site/; a broken link is an error"
	@echo "make release    set up .venv and those for TRL and verifiers, then build the sdist and the wheel in dist/ and check them"
	@echo "make clean      remove .venv, those beside it, and the site"

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is needed, but {v[0]}.{v[1]} was found. Try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: requirements.txt pyproject.toml | $(VENV)/.python
	@echo "Installing the $$(grep -c == requirements.txt) pinned requirements into $(VENV): one to five minutes, once, with a dot every five seconds."
	@(while sleep 5 && kill -0 $$$$; do printf .; done 2>/dev/null) & $(BIN)/python $(PIP) -r requirements.txt
	@echo
	$(BIN)/python $(PIP) --no-deps --editable .
	@touch $@

$(VENV)/.installed-dev: requirements/dev.txt $(VENV)/.installed
	$(BIN)/python $(PIP) -r requirements/dev.txt
	@touch $@

$(VENV)-trl/.installed: requirements/openenv.txt requirements/trl.txt requirements/dev.txt requirements.txt pyproject.toml | $(VENV)/.python
	@echo "Installing TRL, torch and OpenEnv, for their tests, into $(VENV)-trl: some minutes, once (docs/trainers.md: without CUDA)."
	$(PYTHON) -m venv $(VENV)-trl
	$(VENV)-trl/bin/python $(PIP) --no-compile -r requirements/dev.txt -r requirements/openenv.txt
	$(VENV)-trl/bin/python $(PIP) --no-deps --editable .
	@touch $@

# Without --no-compile, pip takes twice as long, because it compiles all of torch and verl, of which tests import a part.
# One environment for each library that is tested by itself: verifiers, verl (2 GB), skyrl, core (reasoning-core). Tests
# install the wheel in fresh environments, which find the libraries here (testing/wheel.py).
$(VENV)-%/.installed: requirements/%.txt | $(VENV)/.python
	@echo "Installing $(VENV)-$*, for tests with the real library: some minutes, once (docs/trainers.md: torch without CUDA)."
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python $(PIP) --no-compile -r requirements/$*.txt
	@touch $@

$(VENV)-llm/.installed: examples/train/requirements.txt examples/train/requirements-alone.txt | $(VENV)/.python
	@echo "Installing vLLM and torch for the processor into $(VENV)-llm: some minutes and 4 GB, once. It needs Python 3.11."
	$(PYTHON) -m venv $(VENV)-llm
	$(VENV)-llm/bin/python $(PIP) -r examples/train/requirements.txt
	$(VENV)-llm/bin/python $(PIP) --no-deps -r examples/train/requirements-alone.txt
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m examples.demo

test: $(VENV)/.installed-dev
	$(PYTEST)

test-slow: $(VENV)/.installed-dev
	$(PYTEST) -m "slow and not libraries" --durations 15

LIBRARIES := trl verifiers verl skyrl core
test-libraries: $(VENV)/.installed-dev $(LIBRARIES:%=$(VENV)-%/.installed)
	$(PYTEST) -m libraries --durations 15

test-servers: $(VENV)/.installed-dev $(VENV)-llm/.installed
	$(VENV)-llm/bin/python -m examples.train.small_model data/llm/model
	$(BIN)/python -m pytest -m servers --numprocesses 0

test-slurm: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slurm --numprocesses 0 --durations 5

llm: $(VENV)/.installed $(VENV)-llm/.installed
	@echo "Now: $(VENV)-llm/bin/python -m examples.train --model small   (examples/train/README.md)"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/index.html."

# Without build isolation, the pinned setuptools of the environment builds the packages. -vv prints a line for each check.
release: $(VENV)/.installed-dev $(VENV)-trl/.installed $(VENV)-verifiers/.installed
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m pytest --numprocesses 0 tests/docs/test_versions.py -vv
	RELEASE_FOLDER=dist $(BIN)/python -m pytest -m slow --numprocesses 0 -vv tests/slow/test_release.py
	@echo "The packages in dist/ passed all checks. docs/development.md says what to do next."

clean:
	rm -rf $(VENV) $(VENV)-trl $(VENV)-verifiers $(VENV)-verl $(VENV)-skyrl $(VENV)-core $(VENV)-llm site
