"""The choice of a device, against facts recorded from the vendors' packages; no accelerator needed.

`device_facts.json` says from which versions. The fakes record each import and call.
"""

import importlib.abc
import importlib.machinery
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from trimaran import device
from trimaran.device import Device, pick
from trimaran.errors import InputError

FACTS = json.loads(Path(__file__).with_name("device_facts.json").read_text())
NPU = FACTS["npu"]


class FakeRuntime:
    """torch.npu or torch.cuda."""

    def __init__(self, name, events, available):
        self._name, self._events, self._available = name, events, available

    def is_available(self):
        return self._available

    def set_device(self, index):
        self._events.append(f"{self._name}.set_device({index})")

    def synchronize(self):
        self._events.append(f"{self._name}.synchronize()")


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
def machine(monkeypatch, tmp_path):
    """`machine(plugin, nodes, cann, cuda)` sets the scene and returns the list of events."""

    def build(plugin=False, nodes=0, cann=True, cuda=False, visible=None):
        events = []
        torch: Any = types.ModuleType("torch")
        torch.cuda = FakeRuntime("cuda", events, cuda)
        torch.npu = FakeRuntime("npu", events, bool(nodes))
        torch.device = lambda *place: ":".join(map(str, place))
        monkeypatch.setitem(sys.modules, "torch", torch)
        parts = [name for order in NPU["import_order"] for name in _parents(order)]
        for name in parts:
            monkeypatch.delitem(sys.modules, name, raising=False)
        names = parts if plugin else []
        monkeypatch.setattr(sys, "meta_path", [Recorder(names, events), *sys.meta_path])
        for number in range(nodes):
            (tmp_path / f"davinci{number}").touch()
        (tmp_path / "davinci_manager").touch()
        monkeypatch.setattr(device, "NPU_NODES", str(tmp_path / "davinci[0-9]*"))
        for name in device.CANN_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        if cann:
            monkeypatch.setenv(NPU["toolkit_variable"], "/usr/local/Ascend/cann")
        monkeypatch.delenv(NPU["visible_devices_variable"], raising=False)
        if visible is not None:
            monkeypatch.setenv(NPU["visible_devices_variable"], visible)
        monkeypatch.setenv(NPU["autoload_variable"], "1")
        return events

    yield build
    for name in [n for n in sys.modules if n.split(".")[0] in ("torch_npu", "mindspeed")]:
        del sys.modules[name]


def _parents(name):
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


@pytest.mark.parametrize("kind", ["npu", "cuda", "cpu"])
def test_backends_and_variables_are_the_recorded_ones(kind):
    chosen = Device(kind, device.BACKENDS[kind])
    assert chosen.backend == FACTS[kind]["backend"]
    assert device.VISIBLE_DEVICES[kind] == FACTS[kind]["visible_devices_variable"]
    assert NPU["toolkit_variable"] in device.CANN_VARIABLES
    assert NPU["device_nodes"] == device.NPU_NODES
    assert NPU["autoload_variable"] == device.AUTOLOAD


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        ({}, "cpu"),
        ({"cuda": True}, "cuda"),
        ({"plugin": True, "nodes": 2}, "npu"),
        ({"plugin": True, "nodes": 2, "cuda": True}, "npu"),
        ({"plugin": True, "nodes": 0}, "cpu"),
        ({"plugin": True, "nodes": 2, "cann": False}, "cpu"),
        ({"plugin": True, "nodes": 2, "visible": ""}, "cpu"),
        ({"plugin": False, "nodes": 2, "cuda": True}, "cuda"),
    ],
)
def test_auto_takes_npu_then_cuda_then_cpu(machine, scene, expected):
    events = machine(**scene)
    assert pick("auto") == Device(expected, FACTS[expected]["backend"])
    assert events == []  # choosing imports no plugin


def test_an_installed_plugin_never_loads_by_itself(machine, monkeypatch):
    machine(plugin=True)
    pick("cpu")
    assert device.os.environ[NPU["autoload_variable"]] == "0"


def test_npu_imports_in_the_documented_order(machine):
    events = machine(plugin=True, nodes=1)
    pick("npu").activate(3, megatron=True)
    documented = [f"import {name}" for name in NPU["import_order"]]
    assert [event for event in events if event in documented] == documented
    assert events[-1] == "npu.set_device(3)"


def test_only_a_trainer_imports_mindspeed(machine):
    events = machine(plugin=True, nodes=1)
    pick("npu").activate()
    assert not any("mindspeed" in event for event in events)


def test_the_adaptor_sees_no_option_of_ours(machine, monkeypatch):
    """MindSpeed makes options that it does not know fields of megatron-core's configuration."""
    machine(plugin=True, nodes=1)
    given = ["trimaran", "serve", "trainer", "--config", "run.yaml"]
    monkeypatch.setattr(sys, "argv", given)
    seen = []
    monkeypatch.setattr(Recorder, "exec_module", lambda *_: seen.append(list(sys.argv)))
    pick("npu").activate(megatron=True)
    assert seen[-1] == ["trimaran"]
    assert sys.argv is given


def test_each_call_sets_the_device_again(machine):
    """A new thread has no device context."""
    events = machine(cuda=True)
    chosen = pick("cuda")
    chosen.activate(1)
    chosen.activate(1)
    chosen.synchronize()
    assert events == ["cuda.set_device(1)", "cuda.set_device(1)", "cuda.synchronize()"]
    assert chosen.torch_device(1) == "cuda:1"


def test_a_cpu_needs_nothing(machine):
    events = machine()
    chosen = pick("cpu")
    chosen.activate()
    chosen.synchronize()
    assert (events, chosen.torch_device(0), chosen.on_host) == ([], "cpu", True)


@pytest.mark.parametrize(
    ("name", "scene", "remedy"),
    [
        ("npu", {}, "install the npu extra"),
        ("npu", {"plugin": True}, "ASCEND_RT_VISIBLE_DEVICES"),
        ("npu", {"plugin": True, "nodes": 1, "cann": False}, "source its set_env.sh"),
        ("cuda", {}, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_missing_device_says_what_would_help(machine, name, scene, remedy):
    machine(**scene)
    with pytest.raises(InputError, match=f"device {name}: .*{remedy}"):
        pick(name)


def test_the_module_loads_no_torch():
    check = "import sys, trimaran.device; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
