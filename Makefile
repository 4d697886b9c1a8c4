# Everything starts from a bare checkout with python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# One BLAS thread per process: oversubscription costs far more than it brings.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1

# Compiled programs are kept: the workers share them, and the next run finds them.
KEPT := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.jax_cache JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

.PHONY: help setup demo test tests quick portable portable-full lint types slow golden bench notebooks notebooks-save pictures browser floors latest clean

help:
	@echo "make demo      from a graph and data to the best intervention: identify, learn, ten experiments on ecoli70, a report"
	@echo "make test      lint, types and tests"
	@echo "make quick     the fast tests only"
	@echo "make portable  the fast tests as four kinds of processor would run them, and with fewer instructions in JAX"
	@echo "               (make portable-full: all tests)"
	@echo "make slow      the long proofs"
	@echo "make golden    compare runs, studies, posteriors, kernels and identifications with the recorded ones"
	@echo "make bench     speed, as ratios measured in one run (installs BoTorch, several gigabytes, and BlackJAX for comparison)"
	@echo "make notebooks run the notebooks with small budgets (make notebooks-save: in full, outputs kept)"
	@echo "make floors    the fast tests in a second environment, .venv-floors, with the lowest versions that pyproject.toml promises"
	@echo "make latest    the fast tests in a third environment, .venv-latest, with the newest releases, as a plain pip install finds them"
	@echo "make pictures  draw the pictures of README and guide again"
	@echo "make browser   look at reports with Debian's chromium: screenshots, a PDF, overflow"
	@echo "make setup     build .venv (done by all of the above when needed)"

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"causal_bo_ppl needs Python 3.11 or newer, but $(PYTHON) is {v[0]}.{v[1]}; name another with make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "this Python cannot make virtual environments; install its venv module (Debian: python3-venv)"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(INSTALLED)

demo: setup
	$(BIN)/causal-bo demo --report results/demo.html

FAST := -m "not slow and not heavy and not golden"
TWO_WORKERS := -n 2 --dist worksteal  # one that has nothing left takes tests from the other

# mypy uses one core only: it runs beside the tests.
test: lint
	$(MAKE) --jobs=2 types tests

tests: setup
	$(KEPT) $(BIN)/python -m pytest $(TWO_WORKERS)

quick: setup
	$(KEPT) $(BIN)/python -m pytest $(TWO_WORKERS) $(FAST)

portable: setup
	$(KEPT) $(BIN)/python tests/portable.py all $(FAST)

portable-full: setup
	$(KEPT) $(BIN)/python tests/portable.py all

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

slow: setup
	$(KEPT) $(BIN)/python -m pytest $(TWO_WORKERS) -m slow

golden: setup
	$(KEPT) $(BIN)/python -m pytest $(TWO_WORKERS) -m golden tests/golden

bench: setup
	$(BIN)/python -c 'import blackjax, botorch' 2> /dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m pytest -q -p no:cacheprovider -o python_files='bench_*.py' tests/benchmarks

notebooks: setup
	$(BIN)/python notebooks/run.py --small

notebooks-save: setup
	$(BIN)/python notebooks/run.py

pictures: setup
	$(BIN)/python docs/pictures.py

browser: setup
	$(BIN)/python tests/browser.py

# Old libraries warn of what newer ones changed: such warnings are no errors here.
LOWEST := .venv-floors
TRIED := pytest pytest-xdist hypothesis ipykernel nbclient nbformat pyarrow scikit-learn threadpoolctl build 'setuptools>=77'

$(LOWEST)/.installed: pyproject.toml tests/floors.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) tests/floors.py > $(LOWEST)/floors.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(LOWEST)/floors.txt $(TRIED)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(LOWEST)/.installed

floors: $(LOWEST)/.installed
	JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.jax_cache $(LOWEST)/bin/python -m pytest $(TWO_WORKERS) $(FAST) -p no:cacheprovider \
		-W ignore::DeprecationWarning -W ignore::FutureWarning

# What somebody gets who installs without constraints.txt; PYTHON chooses the interpreter. The second
# installation makes the tests read this checkout.
NEWEST := .venv-latest

$(NEWEST)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check . $(TRIED)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(NEWEST)/.installed

latest: $(NEWEST)/.installed
	$(KEPT) $(NEWEST)/bin/python -m pytest $(TWO_WORKERS) $(FAST) -p no:cacheprovider

clean:
	rm -rf $(VENV) $(LOWEST) $(NEWEST) .jax_cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
