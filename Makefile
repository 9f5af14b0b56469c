# Every target installs its dependencies: a machine with Python 3.11 or newer is enough.
PYTHON ?= python3
BIN := .venv/bin
CONSTRAINTS ?= constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)

.PHONY: run federate test test-all mutants generate lint types dist docs bench gpu tune clean help

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

run: .venv/.run      ## compare twelve methods on handwritten digits; table, plot and HTML page in runs/
	@$(BIN)/fedsolve compare --config experiments/digits/compare.toml

federate: .venv/.federate  ## run a federation on this machine: Flower, three nodes, PyTorch clients
	@$(BIN)/fedsolve federate demo

test: .venv/.dev     ## run the test suite; 8 minutes the first time
	@echo "running the tests: about 6 minutes on 2 cores the first time, less when compiled programs are cached"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto -m "not alone and not full"

test-all: .venv/.dev .venv/.docs .venv/.families  ## run all tests with production compilation, federations with faults and quick experiments
	@$(BIN)/python -m pytest --production-compile -n auto -m "not alone"
	@$(BIN)/python -m pytest --production-compile -m alone tests/deploy

mutants: .venv/.dev  ## run mutation testing: single changes to src/ that tests must detect
	@$(BIN)/python tests/mutants/run.py --write tests/mutants/verdicts.md

generate: .venv/.dev  ## regenerate generated files: stub, README table, pages, diagram
	@$(BIN)/python tools/generate.py

lint: .venv/.dev     ## check code style and the prose of pages
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/python tools/prose.py

types: .venv/.dev    ## check static types
	@$(BIN)/pyright

dist: .venv/.dist    ## build sdist and wheel in dist/ and test the wheel in clean environments
	@rm -rf dist build
	@$(BIN)/python -m build --outdir dist . > build.log 2>&1 || { cat build.log; exit 1; }
	@rm -rf build build.log
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/python tools/try_wheel.py dist

docs: .venv/.docs    ## build the documentation in site/html, 5 minutes; FAST=1 skips notebooks, 1 minute
	@FAST=$(FAST) $(BIN)/python tools/site/assemble.py
	@$(BIN)/sphinx-build -q -W --keep-going -c tools/site site/pages site/html
	@echo "open site/html/index.html"

bench: .venv/.bench  ## run and store the speed benchmarks, 20 minutes; WORKS="n1 n2" selects some
	@$(BIN)/python benchmarks/bench.py --store --check $(WORKS)

gpu:             ## run tests and benchmarks on an NVIDIA GPU, 20 minutes; PARTS="--cpu" tries them without one
	@$(PYTHON) benchmarks/gpu/gpu_parts.py $(PARTS)

tune: .venv/.run     ## run the sweep that chose the learning rates of `make run`
	@$(BIN)/python experiments/digits/tune.py

clean:           ## remove the environment and caches, but not runs/
	rm -rf .venv .cache .pytest_cache .ruff_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: fedsolve needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1): make PYTHON=python3.12 ..."; exit 2; }
	@echo "creating the environment .venv: 5 seconds"
	@$(PYTHON) -m venv .venv

.venv/.run: .venv/bin/python pyproject.toml $(CONSTRAINTS)
	@echo "installing fedsolve: a minute"
	@$(PIP) --editable '.[plot,digits]'
	@touch $@

.venv/.dev: .venv/.run
	@echo "installing test dependencies: two to three minutes"
	@$(PIP) --editable '.[dev]'
	@$(PIP) --editable '.[flower]' || echo "Flower is not available here: its tests are skipped"
	@$(PIP) 'torch==2.13.0' || echo "PyTorch is not available here: its tests are skipped"
	@touch $@

.venv/.families: .venv/.dev
	@$(PIP) torchvision || echo "torchvision is not available here: its models are skipped"
	@$(PIP) optuna || echo "Optuna is not available here: its example is skipped"
	@$(PIP) transformers accelerate peft lightning || echo "transformers and lightning are not available here: their models and Trainers are skipped"
	@$(BIN)/python -c 'import torchvision' 2> /dev/null || \
	  { echo "torchvision does not fit this PyTorch: its models are skipped"; $(BIN)/python -m pip uninstall -q -y torchvision; }
	@touch $@

.venv/.federate: .venv/.run
	@echo "installing Flower and PyTorch"
	@$(PIP) --editable '.[flower,plot,digits]' 'torch==2.13.0'
	@touch $@

.venv/.dist: .venv/bin/python $(CONSTRAINTS)
	@$(PIP) build twine
	@touch $@

.venv/.docs: .venv/.run
	@$(PIP) --editable '.[docs]'
	@$(PIP) 'torch==2.13.0' || echo "PyTorch is not available here: the notebooks that need it cannot be executed"
	@touch $@

.venv/.bench: .venv/.run
	@$(PIP) --editable '.[flower]' flax
	@$(PIP) 'torch==2.13.0' || echo "PyTorch is not available here: its rows are left out"
	@touch $@
