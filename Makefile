# make demo     the whole chain on GridSim: bundle, two servers, four policies, one table
# make test     every test this machine can run (unit tests first)
# make soak     the state machine, fuzzing, chaos and a long run at full sizes: about an hour
# make modes    those that play episodes again: each env that can be as a fork, two spares of each
# make clients  what those with real clients need: verifiers and NeMo Gym, each in a venv of its own, kept in the cache
# make test-clients  the tests of one of them (CLIENT=nemo-gym; AGENT_ENV_NEMO_GYM=nemo-gym takes its newest release)
# make lint     ruff and mypy
# make bench    measurements beside the peers (BENCH="NAME..." for some of them, see benchmarks/README.md)
# make docs     this documentation as a web site, in build/docs

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SANDBOX ?= auto
CLIENT ?= verifiers
export BASE_IMAGE BUILD_NETWORK

.PHONY: demo test test-sandboxes test-real-clients unit soak modes clients test-clients lint docs bench

demo: $(VENV)/.installed
	$(BIN)/python scripts/demo.py --sandbox $(SANDBOX)

# Two lanes, which may run side by side (make -j2): most of the clients' time is waiting.
test: test-sandboxes test-real-clients

test-sandboxes: unit
	$(BIN)/python -m pytest -m "not soak and not trl and (integration or docker)" --ignore tests/clients

test-real-clients: unit
	$(BIN)/python -m pytest -m "not soak and (integration or docker or verifiers or nemo_gym)" tests/clients

unit: $(VENV)/.installed
	$(BIN)/python -m pytest -m "not soak and not trl and not integration and not docker and not verifiers and not nemo_gym"

soak: $(VENV)/.installed
	AGENT_ENV_STATE_EXAMPLES=2000 AGENT_ENV_FUZZ_REQUESTS=20000 AGENT_ENV_CHAOS=200 AGENT_ENV_SOAK_MINUTES=15 \
	AGENT_ENV_ORCHESTRATOR_STEPS=40 \
	$(BIN)/python -m pytest -s tests/soak tests/docker/test_chaos.py tests/docker/test_fork_chaos.py tests/openenv/test_fuzz.py \
		tests/training/nemo_gym/test_server_fuzz.py tests/training/nemo_gym/test_session_states.py \
		tests/training/nemo_gym/test_orchestrator_load.py

modes: $(VENV)/.installed
	AGENT_ENV_TEST_ISOLATION=fork $(BIN)/python -m pytest -m "not soak and not trl and (integration or docker or verifiers or nemo_gym)" \
		tests/openenv tests/episode tests/steps tests/chain tests/commands tests/docker tests/training tests/clients

clients: $(VENV)/.installed
	$(BIN)/python tests/clients/prepare.py

test-clients: $(VENV)/.installed
	AGENT_ENV_REQUIRE=$(CLIENT) $(BIN)/python tests/clients/prepare.py
	AGENT_ENV_REQUIRE=$(CLIENT) $(BIN)/python -m pytest tests/clients -m "$(subst -,_,$(CLIENT))"

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed
	$(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks $(BENCH)

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "agent-env needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	touch $@
