# `make demo` and `make test` need Linux, Python 3.10 or newer and g++; everything else comes with `make venv`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := andrea-120m
# A worker for each of two cores; the tests of a file stay together, so that its fixtures are made once.
PYTEST_ARGS ?= --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: help venv demo test lint wheel clean

help:
	@echo "make demo   build ANDREA-120M into ./$(DEMO), prove it, and print what was made"
	@echo "make test   run the test suite, on two cores (PYTEST_ARGS=... for other options of pytest)"
	@echo "make lint   ruff and mypy"
	@echo "make wheel  build the wheel into ./dist"
	@echo "make venv   create $(VENV) with everything these need (the others call it)"
	@echo "make clean  remove $(VENV), ./dist and ./$(DEMO)"

venv: $(STAMP)

# Made again only when what is installed changed; the package itself is editable.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,rtx,plugin,dev]'
	@touch $@

demo: venv
	$(BIN)/andrea-export build $(DEMO) --preset andrea-120m

test: venv
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: venv
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

wheel: venv
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) dist $(DEMO)
