# make demo     the whole chain on GridSim: bundle, two servers, four policies, one table
# make test     every test this machine can run (unit tests first)
# make clients  what those with real clients need: verifiers and NeMo Gym, each in a venv of its own, kept in the cache
# make lint     ruff and mypy
# make docs     this documentation as a web site, in build/docs

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SANDBOX ?= auto
export BASE_IMAGE BUILD_NETWORK

.PHONY: demo test unit clients lint docs

demo: $(VENV)/.installed
	$(BIN)/python scripts/demo.py --sandbox $(SANDBOX)

test: unit
	$(BIN)/python -m pytest -m "integration or docker or verifiers"

unit: $(VENV)/.installed
	$(BIN)/python -m pytest -m "not integration and not docker and not verifiers"

clients: $(VENV)/.installed
	$(BIN)/python tests/clients/prepare.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed
	$(BIN)/python -m mkdocs build --strict

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "agent-env needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	touch $@
