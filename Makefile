# `make` prints this help. Two commands are enough for a start: `make study` and `make test`.
.DEFAULT_GOAL := help
SHELL := bash

PYTHON ?= python3
VENV ?= .venv
# The exact versions that are installed, all but PyTorch's. Without: make setup CONSTRAINTS=
CONSTRAINTS ?= constraints.txt
# Where there is no CPU build at hand this is PyTorch's default build. Another one: make setup TORCH="torch==2.12.0"
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# On a terminal pip shows what it downloads and how far it is; elsewhere it prints errors only.
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(shell test -t 2 || echo --quiet)
# As variables, not as `-c`, they hold for the packages too that build a package: old pips read the first there, new
# ones the second.
export PIP_CONSTRAINT = $(abspath $(CONSTRAINTS))
export PIP_BUILD_CONSTRAINT = $(PIP_CONSTRAINT)

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make the virtual environment (.venv) with everything in it

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || { echo "fpl-tune takes Python 3.11 to 3.14, but $(PYTHON) is $$($(PYTHON) -V 2>&1): make setup PYTHON=python3.11"; exit 3; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing $(TORCH) and the other packages into $(VENV): 2 GB on disk, more with a CUDA build; two to five minutes."
	@$(PIP) "$(TORCH)" || { echo "$(TORCH) cannot be installed. Without a network, name a mirror or a folder of wheels: PIP_INDEX_URL or PIP_FIND_LINKS, as pip reads them."; exit 3; }
	@# Named again, or the newest torchvision would bring another torch along.
	$(PIP) "$(TORCH)" -e '.[dev]'
	@touch $(READY)

study: setup ## Run pFedMoAP's lambda sweep on the embedded world: table, report page, MLflow experiment
	$(BIN)/fpl-tune study lambda_sweep

gallery: setup ## Run the studies whose reports and figures the site shows (45 minutes on 2 cores)
	@for study in lambda_sweep joint_search claims zoo zoo2026; do $(BIN)/fpl-tune study $$study || exit; done

# Made without `setup`, which could not install a requirement that its pin does not meet yet.
$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(PIP) uv

LOCK = $(BIN)/uv pip compile -q --no-annotate --no-header --constraints <(echo "$(TORCH)")
NOT_TORCH = grep -vE '^(torch|torchvision|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)=='
lock: | $(BIN)/uv ## Write constraints.txt anew: the newest versions that pyproject.toml allows, for Python 3.11 to 3.14
	@mkdir -p build
	@{ echo "# The versions that \`make setup\` installs and CI tests; \`make lock\` writes this file. PyTorch, and what follows from"; \
	  echo "# its build, is chosen by TORCH in the Makefile."; \
	  $(LOCK) --universal --python-version 3.11 --all-extras pyproject.toml | $(NOT_TORCH); \
	} > build/constraints.txt && mv build/constraints.txt constraints.txt

# Each worker begins with a part of the tests in their order, for the fixtures of modules, and one that is done takes
# from the others.
PYTEST = $(BIN)/python -m pytest -q -n auto --dist worksteal
test: setup ## Run the tests of every line of the package and the kept histories, in parallel
	FPL_TUNE_TEST_PINNED=$(CONSTRAINTS) $(PYTEST) -m "not system"
	$(BIN)/python tests/histories/run.py --kept --count 0 --minutes 10 --shrink 0

test-system: setup ## Run the tests of clusters, servers, databases, kills and wheels
	$(PYTEST) -m system

histories: setup ## Draw histories of studies (runs, kills, edits) for ten minutes, and print those that fail
	$(BIN)/python tests/histories/run.py --kept --minutes 10 --seed $$RANDOM

mutants: setup ## Try small wrong edits of the package and print those that no test catches: ROOM=data SEED=7 COUNT=30
	$(BIN)/python tests/shared/mutation.py $(ROOM) --seed $(or $(SEED),$$RANDOM) --count $(or $(COUNT),30)

test-oldest: | $(BIN)/uv ## Run the tests of `make test` on the oldest packages that pyproject.toml allows
	@mkdir -p build
	@$(LOCK) --resolution lowest-direct --extra dev --python $(BIN)/python pyproject.toml | $(NOT_TORCH) > build/oldest.txt
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=build/oldest.txt

test-newest: ## Run the tests of `make test` on the newest packages that pyproject.toml allows
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=

coverage: setup ## Print the branches that no test reaches
	$(PYTEST) --cov --cov-report=term:skip-covered

lint: setup ## Check style, types and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings --pythonpath $(BIN)/python
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/hadolint .docker/Dockerfile

bench: setup ## Measure what text encoding and a round cost, beside the plain path
	$(BIN)/fpl-tune bench text
	$(BIN)/fpl-tune bench round

gpu-kit: setup ## Pack checks and measurements for a machine with a GPU and no network into build/gpu-kit
	$(BIN)/python benchmarks/gpu_kit.py build/gpu-kit

weights: setup ## Draw the embedded world and train the compact CLIP again (a quarter of an hour on 2 cores)
	$(BIN)/python benchmarks/world/pretrain.py --out compact.safetensors
	$(BIN)/python benchmarks/world/measure.py compact.safetensors

docs: setup ## Build the documentation as a site in build/site/, with the reports that outputs/ holds
	@$(BIN)/python -c "import material" 2>/dev/null || $(PIP) -e '.[docs]'
	@# Without --quiet, under which MkDocs counts no warnings: a broken link is one, and fails.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -f docs/site/mkdocs.yml

dist: setup ## Build the wheel and the source distribution in dist/
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean: ## Remove the environment and what tools left; outputs/ stays
	rm -rf $(VENV) .venv-oldest .venv-newest .pytest_cache .ruff_cache dist build .coverage

.PHONY: help setup study gallery lock test test-system histories mutants test-oldest test-newest coverage lint bench gpu-kit weights docs dist clean
