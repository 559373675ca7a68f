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

gallery: setup ## Run the studies whose reports and figures the site shows (45 minutes on 2 cores)
	@for study in lambda_sweep joint_search claims zoo zoo2026; do $(BIN)/fpl-tune study $$study || exit; done

test: setup ## Run the tests of every line of the package, in parallel
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m "not system"

test-system: setup ## Run the tests of clusters, servers, databases, kills and wheels
	$(BIN)/python -m pytest -q -n auto -m system

test-oldest: ## Run the tests of `make test` on the oldest packages that pyproject.toml allows
	@mkdir -p build && $(PYTHON) .github/tools/oldest.py > build/oldest.txt
	PIP_CONSTRAINT=$(CURDIR)/build/oldest.txt $(MAKE) test VENV=.venv-oldest

coverage: setup ## Print the branches that no test reaches
	$(BIN)/python -m pytest -q -n auto --cov --cov-report=term:skip-covered

lint: setup ## Check style, types and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings --pythonpath $(BIN)/python
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.citation-file-format .github/CITATION.cff
	$(BIN)/hadolint .github/Dockerfile

bench: setup ## Measure what text encoding and a round cost, beside the plain path
	$(BIN)/fpl-tune bench text
	$(BIN)/fpl-tune bench round

gpu-kit: setup ## Pack checks and measurements for a machine with a GPU and no network into build/gpu-kit
	$(BIN)/python .github/tools/gpu_kit.py build/gpu-kit

weights: setup ## Draw the embedded world and train the compact CLIP again (a quarter of an hour on 2 cores)
	$(BIN)/python .github/tools/pretrain.py --out compact.safetensors
	$(BIN)/python .github/tools/measure.py compact.safetensors

docs: setup ## Build the documentation as a site in build/site/, with the reports that outputs/ holds
	@$(BIN)/python -c "import material" 2>/dev/null || $(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q -f .github/mkdocs.yml

dist: setup ## Build the wheel and the source distribution in dist/
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean: ## Remove the environment and what tools left; outputs/ stays
	rm -rf $(VENV) .venv-oldest .pytest_cache .ruff_cache dist build .coverage

.PHONY: help setup study gallery test test-system test-oldest coverage lint bench gpu-kit weights docs dist clean
