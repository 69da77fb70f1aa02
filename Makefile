# `make train`, Docker and the checks of this project. Other commands: ./amp-xla (it lists them).

RUNTIME ?= auto
RECIPE ?= classification
ARGS ?=

# The variables of a command line. Make would silently ignore a misspelt one.
VARIABLES := ARGS BASE_IMAGE DATA ENGINE GPUS IMAGE NP NVIDIA_INDEX PYTHON RECIPE RUNS RUNTIME
GIVEN := $(foreach name,$(.VARIABLES),$(if $(findstring command,$(origin $(name))),$(name)))
UNKNOWN := $(firstword $(filter-out $(VARIABLES) MAKEFLAGS SHELL,$(GIVEN)))
ifneq ($(UNKNOWN),)
$(error error: $(UNKNOWN) is not a variable of this Makefile. Known are: $(VARIABLES))
endif

# Recipes read values from the environment, where a quote in a value ends no quotes around it.
export BASE_IMAGE DATA ENGINE GPUS IMAGE NP NVIDIA_INDEX RECIPE RUNS RUNTIME
# Without bytecode each process compiles TensorFlow's source, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

# PYTHON counts only on the command line: many shells export one for other purposes.
PYTHON_OPTION := $(if $(findstring command,$(origin PYTHON)),--python="$$PYTHON")
ON = $(PYTHON_OPTION) --runtime="$$RUNTIME"
RANKS = $(if $(NP),ranks --np "$$NP",train)
PYTEST = @python=$$(./amp-xla env $(ON)) && exec "$$python" -m pytest
# Tests of a file share models and runs, so each file stays in one process, which takes about 3 GiB.
WORKERS := --numprocesses 2 --dist loadfile

PYTHON_CODE := $(wildcard amp_xla benchmarks examples recipes scripts tests setup.py)
TYPED_CODE := $(wildcard amp_xla benchmarks recipes scripts)
SHELL_CODE := $(wildcard amp-xla .ci/run scripts/*.sh scripts/slurm/*.sbatch)

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' Makefile)

help: ## List the targets (this text)
	@awk -f scripts/help.awk Makefile
train: ; @exec ./amp-xla $(RANKS) $(ON) --recipe="$$RECIPE" -- $(ARGS) ## Train RECIPE; ARGS="--help" lists its flags; NP=2 on two GPUs

##@ In a container, on a GPU server (docs/servers.md)
docker-build: ; @exec scripts/docker.sh build ## Build the image from BASE_IMAGE
docker-train: ; @exec scripts/docker.sh train --recipe "$$RECIPE" -- $(ARGS) ## Train RECIPE in the image; ENGINE=podman or apptainer
docker-shell: ; @exec scripts/docker.sh shell -- $(ARGS) ## Open a shell in the image; ARGS="./amp-xla doctor" runs a command

##@ Work on this project
env: ; @exec ./amp-xla env $(ON) ## Build RUNTIME's environment and print its Python
test: ; $(PYTEST) $(or $(ARGS),$(WORKERS) -m 'not slow and not long and not network') ## Run the quick tests; ARGS="tests/data -k name" picks some
test-all: ; $(PYTEST) $(WORKERS) -m 'not long' $(ARGS) ## Run all tests, as CI does; ARGS="-m long" runs kills and full-size figures
lint: ## Check style and imports: ruff, import-linter, shellcheck, hadolint
	@python=$$(./amp-xla env --runtime dev) && bin=$${python%/*} && failed= && \
	{ $$bin/ruff check --output-format concise $(PYTHON_CODE) || failed=1; } && \
	{ $$bin/ruff format --check --output-format concise $(PYTHON_CODE) || failed=1; } && \
	{ $$bin/lint-imports --no-cache --no-logo || failed=1; } && \
	{ $$bin/shellcheck $(SHELL_CODE) || failed=1; } && \
	{ $$bin/hadolint Dockerfile || failed=1; } && \
	test -z "$$failed"
type: ## Check types with mypy
	@python=$$(./amp-xla env --runtime dev) && exec "$$python" -m mypy $(TYPED_CODE)
format: ## Format the Python code as lint requires
	@python=$$(./amp-xla env --runtime dev) && bin=$${python%/*} && \
	$$bin/ruff check --fix $(PYTHON_CODE); $$bin/ruff format $(PYTHON_CODE)
clean: ## Remove caches and build products; runs/ and .venvs/ stay
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -not -path './.venvs/*' -prune -exec rm -rf {} +
