# Every target sets up what it needs. Python 3.11 or newer: make PYTHON=python3.12 ...
PYTHON ?= python3
SEED ?= 0
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: setup demo test test-integration check-release lint bench templates

setup: $(INSTALLED)

$(INSTALLED): requirements.txt requirements-engine.txt requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit("got Python %d.%d, expected 3.11 or newer: make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

demo: $(INSTALLED)
	$(BIN)/python scripts/run_demo.py --seed $(SEED)

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not integration and not release"

# Servers, a browser, environments of other versions. Installs Debian packages when run as root.
test-integration: $(INSTALLED)
	tests/integration/install.sh
	$(BIN)/python -m pytest -m integration

# What takes longer than a pull request should wait: other seeds of the demo, full-size checkpoints.
check-release: $(INSTALLED)
	$(BIN)/python -m pytest -m release

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(INSTALLED)
	@for file in tests/benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

templates: $(INSTALLED)
	$(BIN)/python tools/make_templates.py
