# Every command a user types. `make` alone lists them.
#
# To add one, write one line under its heading: `name: ; <command> ## <what it does>`.
# $(AMP_XLA) is `python -m amp_xla`, $(ON) is `python`, both on the chosen runtime, whose environment
# is built if it is not there.

RUNTIME ?= auto
RECIPE ?= classification
ARGS ?=
KILLS ?= 200
STEPS ?= 20

# What a command line may set. Make would ignore any other, and the wrong thing would be done.
VARIABLES := ARGS BASE_IMAGE CMD CORPUS DATA ENGINE GPUS HOSTS IMAGE INSPECT KILLS NP NVIDIA_INDEX OUT \
    PYTHON RECIPE REHEARSE RUN RUNS RUNTIME STEPS TUNE
GIVEN := $(foreach name,$(.VARIABLES),$(if $(findstring command,$(origin $(name))),$(name)))
UNKNOWN := $(firstword $(filter-out $(VARIABLES) MAKEFLAGS SHELL,$(GIVEN)))
ifneq ($(UNKNOWN),)
NEAREST := $(shell awk -f scripts/nearest.awk name='$(subst ','\'',$(UNKNOWN))' $(VARIABLES))
$(error error: $(UNKNOWN) is not a variable of this Makefile.$(if \
    $(NEAREST), Did you mean $(NEAREST)?) Known are: $(VARIABLES))
endif

# Shells read values from the environment: a quote in one must not end what stands around it.
export BASE_IMAGE CORPUS DATA ENGINE GPUS HOSTS IMAGE KILLS NP NVIDIA_INDEX OUT RECIPE RUN RUNS RUNTIME STEPS

ENVIRONMENT := scripts/environment.sh
# PYTHON counts only on the command line: many shells have one that was meant for others.
PYTHON_OPTION := $(if $(findstring command,$(origin PYTHON)),--python "$$PYTHON")
ON_RUNTIME = --runtime "$$RUNTIME" $(PYTHON_OPTION)
ON = @exec $(ENVIRONMENT) run $(ON_RUNTIME) --
AMP_XLA = $(ON) -m amp_xla
# One process, or one for each GPU: NP=2, NP=auto, HOSTS=a:8,b:8
RANKS = $(if $(NP)$(HOSTS),-- -m amp_xla ranks $(if $(NP),--np "$$NP") $(if $(HOSTS),--hosts "$$HOSTS"))
OF_RUN = $(if $(RUN),--run "$$RUN")
DOCKER = @exec scripts/docker.sh

# A file's tests share models and runs, so each file stays in one process. A process needs about 3 GiB.
ALL_TESTS := --numprocesses logical --maxprocesses 4 --dist loadfile

PYTHON_CODE := $(wildcard amp_xla examples recipes scripts tests setup.py)
TYPED_CODE := $(wildcard amp_xla recipes scripts)
SHELL_CODE := $(wildcard .ci/run scripts/*.sh scripts/slurm/*.sbatch scripts/kubernetes/*.sh)

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' Makefile)

help: ## List the commands (this text)
	@awk -f scripts/help.awk Makefile

##@ Train
train: ; @exec $(ENVIRONMENT) run $(ON_RUNTIME) $(RANKS) --recipe "$$RECIPE" -- $(ARGS) ## Train RECIPE; ARGS="--help" lists its settings; NP=2 on two GPUs
prepare: ; $(AMP_XLA) prepare $(if $(CORPUS),--corpus "$$CORPUS") $(if $(OUT),--out "$$OUT") $(ARGS) ## Turn text into sequences to pretrain on; CORPUS, OUT
predict: ; $(AMP_XLA) predict $(OF_RUN) $(ARGS) ## Label new text with a trained run: RUN=runs/... ARGS="--file texts.txt"
fill: ; $(AMP_XLA) fill $(OF_RUN) $(ARGS) ## Fill in [MASK]s with a pretrained run: ARGS="--text 'the [MASK] of a list'"
export: ; $(AMP_XLA) export $(OF_RUN) $(ARGS) ## Write RUN=runs/recommendation/... as a SavedModel, its table whole
evaluate: ; $(AMP_XLA) evaluate $(OF_RUN) $(ARGS) ## Examine pretrained models on hidden words: RUN=runs/...,path/to/bert
verify: ; $(AMP_XLA) verify $(OF_RUN) $(ARGS) ## Check that the checkpoints of RUN=runs/... are whole
header: ; $(AMP_XLA) header $(ARGS) ## Print the block to paste on top of a bert4keras script

##@ Train in a container, on a GPU server (scripts/docker.sh says what BASE_IMAGE, GPUS, DATA do)
docker-build: ; $(DOCKER) build ## Build the image from BASE_IMAGE
docker-train: ; $(DOCKER) train --recipe "$$RECIPE" -- $(ARGS) ## Train RECIPE in the image, on a GPU; results in runs/
docker-run: ; $(DOCKER) run -- $(CMD) ## Another command in the image: CMD="predict --run runs/... --file texts.txt"
apptainer-train: ; @ENGINE=apptainer exec scripts/docker.sh train --recipe "$$RECIPE" -- $(ARGS) ## The same with Apptainer, where there is no Docker
docker-test: ; $(DOCKER) test -- $(ARGS) ## Run the quick tests in the image; ARGS="tests/data" picks some
docker-shell: ; $(DOCKER) shell -- $(ARGS) ## Open a shell in the image

##@ See what AMP does
inspect: ; $(AMP_XLA) inspect --recipe "$$RECIPE" $(INSPECT) -- $(ARGS) ## What mixed precision converts, and what is in its way; no GPU needed
rehearse: ; $(AMP_XLA) rehearse --recipe "$$RECIPE" --steps "$$STEPS" $(REHEARSE) -- $(ARGS) ## Train STEPS steps in float32 and modelled AMP, side by side
doctor: ; $(AMP_XLA) doctor $(ARGS) ## Check GPU, driver, TensorFlow, environment, memory, Docker; ARGS=--json

##@ Measure
tune: ; $(AMP_XLA) tune --recipe "$$RECIPE" $(TUNE) -- $(ARGS) ## Find the fastest precision and XLA mode here
bench-peers: ; $(ON) -m scripts.peers $(ARGS) ## Beside plain bert4keras and Hugging Face on PyTorch
bench-loop: ; $(ON) -m scripts.bench_loop $(ARGS) ## What the training loop costs over the bare session call
bench-loss-scale: ; $(ON) -m scripts.bench_loss_scale $(ARGS) ## What dynamic loss scaling costs of a step
bench-precision: ; $(ON) -m scripts.bench_precision $(ARGS) ## One job by rewrite, Keras policy, JAX policy: accuracy, time, memory
bench-gpu: ; $(ON) -m scripts.bench_gpu $(ARGS) ## Fill docs/results/gpu.md on a GPU, beside PyTorch; ARGS=--trial on a CPU
bench-ranks: ; $(ON) -m scripts.bench_ranks $(ARGS) ## What two ranks cost here; ARGS=--paper: 8 GPUs and more, on paper

##@ Work on this project
env: ; @exec $(ENVIRONMENT) python $(ON_RUNTIME) ## Build RUNTIME's environment and print its Python
test: ; $(ON) -m pytest $(or $(ARGS),$(ALL_TESTS) -m 'not slow and not network') ## Run the quick tests; ARGS="tests/data -k name" picks some
test-all: ; $(ON) -m pytest $(ALL_TESTS) $(ARGS) ## Run every test, as CI does
record: ; $(ON) -m scripts.record --recipe "$$RECIPE" $(ARGS) ## Train RECIPE with its defaults; keep the result for the documents
soak: ; $(ON) -m scripts.soak --kills "$$KILLS" $(ARGS) ## Kill training KILLS times at random and compare the results
lint: ## Check style and imports: ruff, import-linter, shellcheck, hadolint
	@python=$$($(ENVIRONMENT) python --runtime dev) && bin=$${python%/*} && failed= && \
	{ $$bin/ruff check --output-format concise $(PYTHON_CODE) || failed=1; } && \
	{ $$bin/ruff format --check --output-format concise $(PYTHON_CODE) || failed=1; } && \
	{ $$bin/lint-imports --no-cache --no-logo || failed=1; } && \
	{ $$bin/shellcheck $(SHELL_CODE) || failed=1; } && \
	{ $$bin/hadolint Dockerfile || failed=1; } && \
	test -z "$$failed"
format: ## Put the Python code into the form that lint wants
	@python=$$($(ENVIRONMENT) python --runtime dev) && bin=$${python%/*} && \
	$$bin/ruff check --fix $(PYTHON_CODE); $$bin/ruff format $(PYTHON_CODE)
type: ## Check types with mypy
	@exec $(ENVIRONMENT) run --runtime dev -- -m mypy $(TYPED_CODE)
clean: ## Remove caches and build products; runs/ and .venvs/ stay
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -not -path './.venvs/*' -prune -exec rm -rf {} +
clean-env: clean ## Remove the environments too
	@rm -rf .venvs
