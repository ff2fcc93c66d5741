"""The choice of a device, against facts recorded from the vendors' packages; no accelerator needed.

`device_facts.json` says from which archives, and which tests read the facts in them again. The
fakes record each import and call.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from trimaran.errors import InputError
from trimaran.host import device, machine
from trimaran.host.device import Device, find_harmful, find_visible, pick
from trimaran.host.machine import Machine

FACTS = json.loads((Path(__file__).parents[1] / "device_facts.json").read_text())
NPU = FACTS["npu"]


class FakeRuntime:
    """torch.npu or torch.cuda."""

    def __init__(self, name, events):
        self._name, self._events = name, events

    def Stream(self):
        return "a new stream"

    def __getattr__(self, call):
        return lambda *given: self._events.append(
            f"{self._name}.{call}({','.join(map(str, given))})"
        )


class Recorder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the named modules and records when each is first imported."""

    def __init__(self, names, events):
        self._names, self._events = names, events

    def find_spec(self, fullname, path, target=None):
        if fullname not in self._names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self._events.append(f"import {module.__name__}")


@pytest.fixture
def events(monkeypatch):
    """What torch and the vendors' packages, all of them fakes, see of us."""
    events = []
    torch: Any = types.ModuleType("torch")
    torch.cuda, torch.npu = FakeRuntime("cuda", events), FakeRuntime("npu", events)
    torch.device = lambda *place: ":".join(map(str, place))
    monkeypatch.setitem(sys.modules, "torch", torch)
    modules = [*NPU["import_order"], *NPU["imported_by_mindspeed"]]
    names = [name for module in modules for name in _parents(module)]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Recorder(names, events), *sys.meta_path])
    monkeypatch.setenv(NPU["autoload_variable"], "1")
    yield events
    for name in names:
        sys.modules.pop(name, None)


def _parents(name):
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def make_machine(
    plugin=False, npus=0, cann=True, gpus=0, npus_shown=None, gpus_shown=None, **variables
):
    variables |= {
        NPU["toolkit_variable"]: "/usr/local/Ascend/cann" if cann else None,
        NPU["visible_devices_variable"]: npus_shown,
        FACTS["cuda"]["visible_devices_variable"]: gpus_shown,
    }
    return Machine(
        variables={name: value for name, value in variables.items() if value is not None},
        packages=frozenset(["torch_npu"] if plugin else []),
        num_npus=npus,
        num_gpus=gpus,
    )


@pytest.mark.parametrize("kind", ["npu", "cuda", "cpu"])
def test_backends_and_variables_are_the_recorded_ones(kind):
    chosen = Device(kind, device.BACKENDS[kind])
    assert chosen.backend == FACTS[kind]["backend"]
    assert device.VISIBLE_DEVICES[kind] == FACTS[kind]["visible_devices_variable"]
    assert NPU["toolkit_variable"] in device.CANN_VARIABLES
    assert NPU["device_nodes"] == machine.NPU_NODES
    assert NPU["autoload_variable"] == device.AUTOLOAD


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        ({}, "cpu"),
        ({"gpus": 1}, "cuda"),
        ({"plugin": True, "npus": 2}, "npu"),
        ({"plugin": True, "npus": 2, "gpus": 1}, "npu"),
        ({"plugin": True, "npus": 2, "npus_shown": ""}, "cpu"),
        ({"plugin": False, "npus": 2, "gpus": 1}, "cuda"),
        ({"gpus": 1, "gpus_shown": ""}, "cpu"),
    ],
)
def test_auto_takes_npu_then_cuda_then_cpu(events, scene, expected):
    assert pick("auto", make_machine(**scene)) == Device(expected, FACTS[expected]["backend"])
    assert events == []  # choosing imports no plugin


def test_auto_does_not_take_the_cpu_where_an_npu_lacks_something():
    with pytest.raises(InputError, match="source its set_env.sh"):
        pick("auto", make_machine(plugin=True, npus=2, cann=False))


def test_an_installed_plugin_never_loads_by_itself(events):
    pick("cpu", make_machine(plugin=True))
    assert os.environ[NPU["autoload_variable"]] == "0"


def test_npu_imports_in_the_documented_order(events):
    pick("npu", make_machine(plugin=True, npus=4)).activate(3, megatron=True)
    documented = [f"import {name}" for name in NPU["import_order"]]
    assert [event for event in events if event in documented] == documented
    assert events[-1] == "npu.set_device(3)"


def test_only_a_trainer_has_torch_rebound(events):
    """transfer_to_npu and MindSpeed change torch for the whole process: never in vLLM's."""
    pick("npu", make_machine(plugin=True, npus=1)).activate()
    assert events == ["import torch_npu", "npu.set_device(0)"]


def test_the_adaptor_sees_no_option_of_ours(events, monkeypatch):
    """MindSpeed makes options that it does not know fields of megatron-core's configuration."""
    given = ["trimaran", "serve", "trainer", "--config", "run.yaml"]
    monkeypatch.setattr(sys, "argv", given)
    seen = []
    monkeypatch.setattr(Recorder, "exec_module", lambda *_: seen.append(list(sys.argv)))
    pick("npu", make_machine(plugin=True, npus=1)).activate(megatron=True)
    assert seen[-1] == ["trimaran"]
    assert sys.argv is given


def test_each_call_sets_the_device_again(events):
    """A new thread has no device context."""
    chosen = pick("cuda", make_machine(gpus=2))
    chosen.activate(1)
    chosen.activate(1)
    chosen.use_own_stream()
    chosen.synchronize()
    assert [event.removeprefix("cuda.") for event in events] == [
        *("set_device(1)", "set_device(1)", "set_stream(a new stream)", "synchronize()")
    ]
    assert chosen.torch_device(1) == "cuda:1"


def test_a_cpu_needs_nothing(events):
    chosen = pick("cpu", make_machine())
    chosen.activate()
    chosen.use_own_stream()
    chosen.synchronize()
    assert (events, chosen.torch_device(0), chosen.on_host) == ([], "cpu", True)


@pytest.mark.parametrize(
    ("name", "scene", "remedies"),
    [
        ("npu", {"cann": False}, ["npu/install.sh", "ASCEND_RT_VISIBLE_DEVICES", "set_env.sh"]),
        ("cuda", {}, ["CUDA_VISIBLE_DEVICES"]),
    ],
)
def test_whatever_a_device_misses_has_a_line_that_says_what_would_help(name, scene, remedies):
    with pytest.raises(InputError) as caught:
        pick(name, make_machine(**scene))
    lines = str(caught.value).splitlines()
    assert len(lines) == len(remedies)
    for line, remedy in zip(lines, remedies, strict=True):
        assert line.startswith(f"device {name}: ")
        assert remedy in line


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, "0 1 2 3"),
        ("", ""),
        ("0,3", "0 3"),
        ("0,32,1", "0"),  # none after one that is not there
        ("0, 1", "0"),  # none after a character that is neither digit nor comma
        ("0 ,1", "0"),
        (",0", ""),
        ("npu0", ""),
        ("1,0", ""),  # the runtime wants them to ascend
        ("0,1,1", ""),
    ],
)
def test_npus_are_in_sight_as_torch_npu_counts_them(shown, expected):
    """The cases of torch_npu's own test, test_npu_device_count_with_visible_devices, and why each
    comes out so in torch_npu/npu/__init__.py."""
    assert find_visible("npu", make_machine(npus=4, npus_shown=shown)) == tuple(expected.split())


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, "0 1 2 3"),
        ("", ""),
        ("3, 1", "3 1"),
        ("0,-1,2", "0"),
        ("0,9,2", "0"),
        ("1,1", ""),
        ("NoDevFiles", ""),
        ("GPU-8932f937,MIG-dc4d", "GPU-8932f937 MIG-dc4d"),
    ],
)
def test_gpus_are_in_sight_as_cuda_counts_them(shown, expected):
    assert find_visible("cuda", make_machine(gpus=4, gpus_shown=shown)) == tuple(expected.split())


GROUP = NPU["process_group"]
HANDLING = GROUP["async_error_handling"]
HARMFUL = [(variable, 1) for variable in GROUP["derived_from_the_default_group_by"]]
HARMFUL += [(HANDLING["variable"], n) for n in {*range(4)} - {*HANDLING["ends_the_process"]}]


@pytest.mark.parametrize(("variable", "value"), HARMFUL)
@pytest.mark.parametrize("name", ["npu", "auto"])
def test_a_variable_that_would_harm_the_groups_of_an_npu_is_refused(name, variable, value):
    given: Any = {variable: str(value)}
    npu = make_machine(plugin=True, npus=1, **given)
    with pytest.raises(InputError, match=f"^device npu: {variable}={value} is set.*unset it$"):
        pick(name, npu)


def test_variables_that_do_no_harm_are_left_alone():
    harmless: Any = {"RANK_TABLE_FILE": "", "ROOTINFO_SUBCOMM_ENABLE": "0"}
    for value in HANDLING["ends_the_process"]:
        harmless[HANDLING["variable"]] = str(value)
        assert not find_harmful("npu", make_machine(plugin=True, npus=1, **harmless))
    elsewhere = make_machine(gpus=1, RANK_TABLE_FILE="/etc/hccl.json")
    assert not find_harmful("cuda", elsewhere) and pick("cpu", elsewhere).kind == "cpu"


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("cpu", {}),
        ("cuda", {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}),
        ("npu", {"HCCL_DETERMINISTIC": "true", "CLOSE_MATMUL_K_SHIFT": "1", "NCCL_ALGO": "Ring"}),
    ],
)
def test_what_a_deterministic_run_sets(kind, wanted, monkeypatch):
    """What is set already stays."""
    import torch

    seen = []
    monkeypatch.setattr(os, "environ", {"NCCL_ALGO": "Ring"})
    monkeypatch.setattr(torch, "use_deterministic_algorithms", seen.append)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    Device(kind, device.BACKENDS[kind]).be_deterministic()
    assert wanted.items() <= os.environ.items()
    assert os.environ["NCCL_ALGO"] == "Ring"
    assert seen == ([] if kind == "cpu" else [True])
