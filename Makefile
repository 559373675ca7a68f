# `make` prints this help. Two commands are enough for a start: `make study` and `make test`.
.DEFAULT_GOAL := help
SHELL := bash

PYTHON ?= python3
VENV ?= .venv
# Where there is no CPU build at hand this is PyTorch's default build. Another one: make setup TORCH="torch==2.12.0"
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# On a terminal pip shows what it downloads and how far it is; elsewhere it prints errors only.
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(shell test -t 2 || echo --quiet)

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make the virtual environment (.venv) with everything in it

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "fpl-tune needs Python 3.10 or newer: make setup PYTHON=python3.11"; exit 3; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing $(TORCH) and the other packages into $(VENV): 2 GB on disk, more with a CUDA build; two to five minutes."
	$(PIP) "$(TORCH)"
	@# Named again, or the newest torchvision would bring another torch along.
	$(PIP) "$(TORCH)" -e '.[dev]'
	@touch $(READY)

study: setup ## Run pFedMoAP's lambda sweep on the embedded world: table, report page, MLflow experiment
	$(BIN)/fpl-tune study lambda_sweep

test: setup ## Run the tests of every line of the package, in parallel
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m "not system"

test-system: setup ## Run the tests of clusters, servers, databases, kills and wheels
	$(BIN)/python -m pytest -q -n auto -m system

coverage: setup ## Print the branches that no test reaches
	$(BIN)/python -m pytest -q -n auto --cov --cov-report=term:skip-covered

lint: setup ## Check style, types and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings --pythonpath $(BIN)/python

bench: setup ## Measure what text encoding and a round cost, beside the plain path
	$(BIN)/fpl-tune bench text
	$(BIN)/fpl-tune bench round

weights: setup ## Draw the embedded world and train the compact CLIP again (a quarter of an hour on 2 cores)
	$(BIN)/python .github/tools/pretrain.py --out compact.safetensors
	$(BIN)/python .github/tools/measure.py compact.safetensors

dist: setup ## Build the wheel and the source distribution in dist/
	$(BIN)/python -m build --no-isolation

clean: ## Remove the environment and what tools left; outputs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache dist build .coverage

.PHONY: help setup study test test-system coverage lint bench weights dist clean
