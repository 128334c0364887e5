# Every target sets up what it needs. Python 3.11 or newer: make PYTHON=python3.12 ...
PYTHON ?= python3
SEED ?= 0
BIN := .venv/bin
# What the commands need, and what tests and linting need besides.
INSTALLED := .venv/installed
DEVELOPED := .venv/developed
NAME := tao-finetune-cosmos-reason
VERSION := $(shell sed -n 's/^skill_version: *//p' skill_info.yaml)
# What users get: `make dist` packs it, evals/run.py installs it.
SHIPPED := .claude-plugin CHANGELOG.md CONTRIBUTING.md LICENSE Makefile README.md SKILL.md docs references requirements-engine.txt requirements.txt schemas scripts skill_info.yaml

.PHONY: setup demo test test-integration check-release lint bench templates docs dist

setup: $(INSTALLED)

$(INSTALLED): requirements.txt requirements-engine.txt
	@$(PYTHON) -c 'import sys; sys.exit("got Python %d.%d, expected 3.11 or newer: make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-engine.txt
	touch $@

$(DEVELOPED): $(INSTALLED) requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

demo: $(INSTALLED)
	$(BIN)/python scripts/run_demo.py --seed $(SEED)

test: $(DEVELOPED)
	$(BIN)/python -m pytest -m "not integration and not release"

# Servers, a browser, environments of other versions. Installs Debian packages when run as root.
test-integration: $(DEVELOPED)
	tests/integration/install.sh
	$(BIN)/python -m pytest -m integration

# What takes longer than a pull request should wait: other seeds of the demo, full-size checkpoints.
check-release: $(DEVELOPED)
	$(BIN)/python -m pytest -m release

lint: $(DEVELOPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(DEVELOPED)
	@for file in tests/benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

templates: $(INSTALLED)
	$(BIN)/python tools/make_templates.py

docs: templates
	$(BIN)/python tools/make_docs.py

dist:
	mkdir -p dist
	git archive --prefix=$(NAME)/ --output dist/$(NAME)-$(VERSION).tar.gz HEAD $(SHIPPED)
	@echo dist/$(NAME)-$(VERSION).tar.gz
