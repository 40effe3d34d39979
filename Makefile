# `make demo` and `make test` do all the set-up that they need; `make help` lists the rest.
# Needs only make, a POSIX shell and Python 3.11, 3.12 or 3.13 with its venv module.

BACKENDS := tensorflow jax torch
BACKEND ?= tensorflow
OUTPUT ?= demo-output
# Two processes: most tests are one thread of Python or of a compiler. By file, for what the tests of a file share.
# Without a path among these, pytest takes `testpaths` of pyproject.toml.
PYTEST_ARGS ?= -n 2 --dist loadfile
GOAL := $(MAKECMDGOALS)
comma := ,

# Compiled once: without bytecode, each process that a test starts would compile TensorFlow's two thousand files.
unexport PYTHONDONTWRITEBYTECODE

# A Python passes if it exists, runs and is one that every backend has wheels for.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3 python3.12 python3.13; do \
	if $$p -c '$(SUPPORTED)' 2>/dev/null; then echo $$p; break; fi; done)
endif
ifeq ($(strip $(PYTHON)),)
PYTHON := python3
endif

DEMO := .venv/demo-$(BACKEND)
TEST := .venv/test
TOOLS := .venv/tools
DOCS := .venv/docs
LOWEST := .venv/lowest
BENCH := .venv/bench
BENCH_ARGS ?=
# A machine with a GPU measures the GPU.
GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
BENCHED := $(if $(GPU),accelerators,speed)
BENCH_PAGE := docs/$(if $(GPU),accelerators,speed_rows).md

.PHONY: help demo test test-lowest test-nightly bench lint format wheel sbom docs clean

help:
	@echo "make demo [BACKEND=tensorflow|jax|torch]   the demo, in an environment with that one backend; writes OUTPUT=$(OUTPUT)"
	@echo "make test [PYTEST_ARGS='-x tests/layers']  style and types, then the suite, or a part of it, on all three backends"
	@echo "make test-lowest                           tests on torch, with the lowest versions that pyproject.toml allows"
	@echo "make test-nightly [SOFTWARE_VULKAN=FOLDER] learning, sweeps and many random cases; LiteRT's GPU accelerator over a Vulkan driver on the CPU"
	@echo "                  [NODE_MODULES=FOLDER]    examples/browser in Debian's Chromium (BROWSER=firefox-esr: in Firefox)"
	@echo "make bench [BENCH_ARGS='--rows NAME']      speed beside timm, Transformers, Flax and KerasHub; writes docs/speed.json (with a GPU: the page of accelerators)"
	@echo "make lint                                  style and types only"
	@echo "make format                                repairs style and formatting"
	@echo "make wheel                                 builds dist/keras_vit_zoo-*.whl and source archive"
	@echo "make sbom                                  writes sbom/keras-vit-zoo.cdx.json: what the wheel in dist/ brings along"
	@echo "make docs                                  builds the documentation site into site/ and checks its links"
	@echo "make clean                                 removes .venv/, dist/, sbom/, site/, demo-output/, examples-output/ and caches"
	@echo "PYTHON=/path/to/python3.11 after any of them names the interpreter (now: $(PYTHON))"

demo: $(DEMO)/.installed
	@KERAS_BACKEND=$(BACKEND) $(DEMO)/bin/python examples/demo.py --output "$(OUTPUT)"

# Every backend runs, whatever the others did; the last line names what failed.
# Types are checked where no framework is installed, here as in `make lint`: what a framework says of its own types
# changes with its version. They are checked while the larger environment is made.
test:
	@failed=""; \
	$(MAKE) --no-print-directory --jobs=2 --keep-going GOAL=test $(TEST)/.installed lint || failed=" lint"; \
	[ -e $(TEST)/.installed ] || exit 1; \
	for backend in $(BACKENDS); do \
		echo; echo "== $$backend"; \
		KERAS_BACKEND=$$backend $(TEST)/bin/python -m pytest $(PYTEST_ARGS) || failed="$$failed $$backend"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

test-lowest: $(LOWEST)/.installed
	@KERAS_BACKEND=torch $(LOWEST)/bin/python -m pytest $(PYTEST_ARGS)

# What `make test` leaves out, and twenty times its random cases; damaged files and planted faults, others on each day.
test-nightly: $(TEST)/.installed
	@failed=""; \
	for backend in $(BACKENDS); do \
		echo; echo "== $$backend"; \
		KERAS_BACKEND=$$backend $(TEST)/bin/python -m pytest -m nightly $(PYTEST_ARGS) || failed="$$failed $$backend"; \
	done; \
	echo; echo "== random cases"; \
	KERAS_BACKEND=torch KERAS_VIT_EXAMPLES=20 $(TEST)/bin/python -m pytest -m "" tests/properties \
		|| failed="$$failed random"; \
	echo; echo "== damaged files"; \
	KERAS_BACKEND=torch $(TEST)/bin/python benchmarks/fuzz.py --count 500 --seed $$(date +%j) || failed="$$failed damaged"; \
	echo; echo "== planted faults (for a person to read)"; \
	KERAS_BACKEND=torch $(TEST)/bin/python benchmarks/mutation.py --rooms layers models --count 20 --seed $$(date +%j) \
		tests/layers tests/models || failed="$$failed faults"; \
	echo; echo "== LiteRT's accelerator"; \
	KERAS_BACKEND=tensorflow $(TEST)/bin/python -m pytest tests/export/test_phones.py || failed="$$failed accelerator"; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

# All rows take long; BENCH_ARGS='--rows NAME' chooses some.
bench: $(BENCH)/.installed
	@$(BENCH)/bin/python benchmarks/$(BENCHED).py --json docs/$(BENCHED).json --page $(BENCH_PAGE) $(BENCH_ARGS)

lint: $(TOOLS)/.installed
	@$(TOOLS)/bin/python -m ruff check .
	@$(TOOLS)/bin/python -m ruff format --check .
	@$(TOOLS)/bin/python -m ty check --python $(TOOLS)
	@$(TOOLS)/bin/python .ci/words.py

format: $(TOOLS)/.installed
	@$(TOOLS)/bin/python -m ruff check --fix . || true
	@$(TOOLS)/bin/python -m ruff format .

wheel: $(TOOLS)/.installed
	@rm -rf dist
	@$(TOOLS)/bin/python -m build --no-isolation .
	@$(TOOLS)/bin/python -m twine check --strict dist/*

# CycloneDX, of an environment that has the wheel and what it needs, and nothing else.
sbom:
	@rm -rf .venv/sbom sbom && mkdir sbom && $(PYTHON) -m venv .venv/sbom && $(PYTHON) -m venv --without-pip .venv/sbom/of
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt .venv/sbom/bin/python -m pip install --quiet \
		--disable-pip-version-check cyclonedx-bom==7.5.0
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt .venv/sbom/bin/python -m pip \
		--python .venv/sbom/of/bin/python install --quiet --disable-pip-version-check dist/*.whl
	@.venv/sbom/bin/cyclonedx-py environment .venv/sbom/of/bin/python --output-reproducible --of JSON -o sbom/keras-vit-zoo.cdx.json

docs: $(DOCS)/.installed
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --quiet --strict
	@$(DOCS)/bin/python docs/check_site.py site

clean:
	rm -rf .venv dist sbom site demo-output examples-output .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Environments. Each is made afresh when one of these two files changes; nothing outside .venv/ is touched.
# constraints.txt pins everything, torch above all: unpinned, another package may replace it by a CUDA build. What builds
# a package from source (ours; whatever comes without a wheel) is pinned as well: older pips read PIP_CONSTRAINT for that,
# newer ones PIP_BUILD_CONSTRAINT. Builds are isolated, so that none depends on what happens to be installed.

define new_environment
	@$(PYTHON) -c '$(SUPPORTED)' 2>/dev/null || { \
		echo "keras_vit needs Python 3.11, 3.12 or 3.13, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
		echo "Install one of them, or name it: make $(GOAL) PYTHON=/path/to/python3.11"; exit 1; } >&2
	@echo "Making $(@D) with $$($(PYTHON) --version): $(1)"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D) || { rm -rf $(@D); \
		echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
endef
PIP_INSTALL = @PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile

$(DEMO)/.installed: pyproject.toml constraints.txt
	$(if $(filter $(BACKEND),$(BACKENDS)),,$(error BACKEND=$(BACKEND) is not one of: $(BACKENDS)))
	$(call new_environment,$(BACKEND) and what the demo needs; a few minutes and some 3 GB)
	$(PIP_INSTALL) -e '.[$(BACKEND),export,demo]'
	@touch $@

$(TEST)/.installed: pyproject.toml constraints.txt
	$(call new_environment,all three backends and the test tools; a few minutes and some 4 GB)
	$(PIP_INSTALL) -e '.[tensorflow,jax,torch,images,plots,export,demo,test]'
	@touch $@

$(BENCH)/.installed: pyproject.toml constraints.txt benchmarks/peers.txt
	$(call new_environment,all three backends and their peers; a few minutes and some 5 GB)
	$(PIP_INSTALL) -e '.[tensorflow,jax,torch,plots$(if $(GPU),$(comma)cuda)]' -r benchmarks/peers.txt
	@touch $@

$(TOOLS)/.installed: pyproject.toml constraints.txt
	$(call new_environment,the style checks and the build tools; a moment)
	$(PIP_INSTALL) -e . build hatchling proselint ruff twine ty
	@touch $@

$(DOCS)/.installed: pyproject.toml constraints.txt
	$(call new_environment,what builds the documentation site; a moment)
	$(PIP_INSTALL) -e '.[docs]'
	@touch $@

# The test tools are today's; what the package itself imports is as old as it may be.
$(LOWEST)/.installed: pyproject.toml .ci/lowest.py
	$(call new_environment,torch and the lowest versions of what the package imports; a few minutes)
	@$(@D)/bin/python .ci/lowest.py torch demo text > $(@D)/lowest.txt
	@PIP_CONSTRAINT=$(@D)/lowest.txt PIP_BUILD_CONSTRAINT=constraints.txt \
		$(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
		-e '.[torch,demo,text]' build hatchling hypothesis pytest pytest-xdist pyyaml ruff scipy
	@touch $@
