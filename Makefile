# make demo   set everything up and train SmolLM2-135M to add one-digit numbers
# make demo PLUGIN=1   the same with a second reward, judged by a plugin over HTTP
# make test   set everything up, check the code and run every test on the CPU
# make bench  measure against TRL and plain transformers
# make faults-weights  200 faults on stand-in engines and 20 on vLLM, one after another
# make mutate-weights  break the weight plane's promises one after another: do the tests notice?
# make bench-weights  measure the weight plane
# make bench-reward   measure the reward service

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTO_VENV := .cache/protos
TRL_VENV := .cache/trl
MODEL := models/SmolLM2-135M-Instruct
SEED ?= 1
# uv does not read pip's settings; hand its local wheels on.
UV := UV_FIND_LINKS="$$PIP_FIND_LINKS" UV_HTTP_TIMEOUT=300 $(BIN)/uv

.PHONY: install demo test lint protos check-protos lock bench bench-weights bench-reward faults-weights mutate-weights clean

install: $(VENV)/.installed

$(VENV)/.installed: requirements/cpu.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo "Python 3.11 is needed: make PYTHON=/path/to/python3.11 …"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet uv
	# Compiled once here: a start would compile 6,000 files anew where Python may not write.
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --compile-bytecode \
	  -r requirements/cpu.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $@

$(MODEL)/model.safetensors: | $(VENV)/.installed
	$(BIN)/python examples/addition/make_model.py $(MODEL)

demo: install $(MODEL)/model.safetensors
ifdef PLUGIN
	$(BIN)/trimaran reward serve examples/reward_plugin/brevity.py:brevity --minimum 0 --maximum 1 & \
	server=$$!; trap "kill $$server; wait $$server" EXIT; \
	for second in 1 2 3; do sleep 1; kill -0 $$server || exit 2; done; \
	$(BIN)/trimaran train examples/reward_plugin/run.yaml --allow http://127.0.0.1:8700 run.seed=$(SEED)
else
	$(BIN)/trimaran train examples/addition/run.yaml run.seed=$(SEED)
endif

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

lint: install check-protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

# Generated with an old, pinned tool: its code loads on protobuf 5.29, 6 and 7.
$(PROTO_VENV)/.installed:
	$(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/pip install --quiet grpcio-tools==1.71.2
	touch $@

GENERATE = $(PROTO_VENV)/bin/python -m grpc_tools.protoc --proto_path=protos --python_out=$(1) \
	--pyi_out=$(1) --grpc_python_out=$(1) protos/trimaran/v1/*.proto

protos: $(PROTO_VENV)/.installed
	$(call GENERATE,.)

check-protos: $(PROTO_VENV)/.installed
	rm -rf .cache/generated && mkdir -p .cache/generated
	$(call GENERATE,.cache/generated)
	diff -r --exclude=__init__.py --exclude=__pycache__ .cache/generated/trimaran/v1 trimaran/v1 \
	  || { echo "generated code is not current: run make protos"; exit 1; }

LOCK = $(UV) pip compile --quiet --python-version 3.11 --no-header \
	--override requirements/cpu-overrides.txt

lock: install
	$(LOCK) requirements/cpu.in -o requirements/cpu.txt
	$(LOCK) --no-annotate requirements/trl.in -o requirements/trl.txt

# TRL in an environment of its own.
$(TRL_VENV)/.installed: requirements/trl.txt | $(VENV)/.installed
	$(PYTHON) -m venv $(TRL_VENV)
	$(UV) pip install --quiet --python $(TRL_VENV)/bin/python --no-deps -r requirements/trl.txt
	touch $@

bench: install $(MODEL)/model.safetensors $(TRL_VENV)/.installed
	$(BIN)/python -m benchmarks.run

bench-weights: install $(MODEL)/model.safetensors
	$(BIN)/python -m benchmarks.weights $(if $(ONLY),--only $(ONLY))

bench-reward: install
	$(BIN)/python -m benchmarks.reward $(if $(ONLY),--only $(ONLY))

# Both run, whatever comes of the first.
faults-weights: install
	$(BIN)/python -m tests.faults.drive --seed $(SEED) --count 200 --engine stand-in; first=$$?; \
	$(BIN)/python -m tests.faults.drive --seed $(SEED) --count 20 --engine vllm && exit $$first

mutate-weights: install
	$(BIN)/python -m tests.mutations

clean:
	rm -rf $(VENV) .cache
