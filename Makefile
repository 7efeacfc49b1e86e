# The two commands that matter: `make train` and `make test`. Each sets up a virtual environment in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements.lock
INSTALL := $(BIN)/pip install --constraint $(LOCK)
TORCH := $(shell grep '^torch==' $(LOCK))
GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && echo ,gpu)
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv train demo compare text test test-slow lint format docs bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo "  options of a command: make train ARGS='--core lstm --seed 1'"

venv: $(READY)  ## create .venv with everything that training and tests need

# Without a GPU the CPU build of torch is taken, from wherever pip finds one, so that no CUDA packages are downloaded.
TORCH_IS_THERE = $(BIN)/python -c 'import sys, torch; sys.exit("torch==" + torch.__version__.partition("+")[0] != "$(TORCH)")' 2>/dev/null
FINDS_CPU_BUILD = $(BIN)/pip install --quiet --dry-run --no-deps --ignore-installed --report - $(TORCH)
$(READY): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 11) <= v <= (3, 13) and f"Python 3.11 to 3.13 is needed, {sys.executable} is {v[0]}.{v[1]}; name another: make PYTHON=python3.12")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
		echo "could not create $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV) (once; a few minutes)"
	@if command -v nvidia-smi >/dev/null 2>&1 || $(TORCH_IS_THERE); then :; \
		elif $(FINDS_CPU_BUILD) | grep -q '+cpu'; then $(INSTALL) $(TORCH); \
		elif $(FINDS_CPU_BUILD) --extra-index-url $(CPU_INDEX) | grep -q '+cpu'; \
		then $(INSTALL) --extra-index-url $(CPU_INDEX) $(TORCH); \
		else echo "no CPU build of $(TORCH) at $(CPU_INDEX), and the build with CUDA needs 6 GB and a GPU that is not here:" \
			"name a mirror (make CPU_INDEX=URL), or install the one you want first ($(BIN)/pip install $(TORCH))" >&2; exit 1; fi
	@$(INSTALL) --editable '.[dev$(GPU)]'
	@touch $@

train: venv  ## train the Compressive Transformer agent on two CPU cores, under 10 minutes
	$(BIN)/compressive launch --preset cpu $(ARGS)

demo: venv  ## play a trained agent, and write a video and a page of what its memory decides
	$(BIN)/compressive visualize pretrained/level --seed 9 --output demo $(ARGS)
	@echo "train an agent of your own, in under 10 minutes: make train"

compare: venv  ## compare compression rates on a task of memory: 20 runs, an hour of two fast cores
	$(BIN)/compressive compare --preset memory --rates 1 2 4 8 --seeds 0 1 2 3 4 $(ARGS)

text: venv  ## compare language models with xz and bz2 on two CPU cores, under 20 minutes
	$(BIN)/python -m benchmarks.text $(ARGS)

# The level is compiled once, before many processes want it at the same time; what is compiled is kept.
test: venv  ## run the tests, but for the slow ones, in three processes
	@$(BIN)/python -c 'import envs; envs.make_vector("rooms:small", 1).reset()'
	$(BIN)/python -m pytest -m 'not slow' -n 3 --dist loadgroup $(ARGS)

test-slow: venv  ## run the slow tests, mostly whole Ray clusters of which parts are killed
	$(BIN)/python -m pytest -m slow -n 2 --dist loadgroup --ignore=tests/test_nodes.py $(ARGS)
	$(BIN)/python -m pytest -m slow tests/test_nodes.py $(ARGS)  # a process of its own: Ray mixes up clusters with other addresses

lint: venv  ## style, types and the structure of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

format: venv  ## mend the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: venv  ## build the documentation and the API reference into site/
	@$(BIN)/python -c 'import mkdocs, mkdocstrings_handlers.python' 2>/dev/null || $(INSTALL) --quiet --editable '.[docs]'
	$(BIN)/mkdocs build --quiet --strict

NO_SPEED := balanced causes common cubes density digests exported fidelity fidelity_frames mutation oracle peers reach resident recall soak kill_driver text
SPEED := $(filter-out $(NO_SPEED),$(basename $(notdir $(wildcard benchmarks/*.py))))
bench: venv  ## side-by-side speed measurements, one JSON object each
	@for name in $(SPEED); do echo "# $$name" >&2; $(BIN)/python -m benchmarks.$$name || exit 1; done

clean:  ## remove caches, not runs
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
