"""The plugin against vLLMs of several kinds; only one of them is installed here."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from services.rollout.vllm import plugin as vllm_plugin

FACTORY = "vllm.distributed.weight_transfer.factory"


class Factory:
    def __init__(self):
        self.registered = {}

    def register_engine(self, name, module, class_name):
        if name in self.registered:
            raise ValueError(f"{name} is already registered")
        self.registered[name] = module, class_name


class OtherFactory:
    def register_engine(self, name):
        raise AssertionError("not called with one argument")


def install(monkeypatch, factory) -> None:
    module: Any = ModuleType(FACTORY)
    if factory is not None:
        module.WeightTransferEngineFactory = factory
    monkeypatch.setitem(sys.modules, FACTORY, module)
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


def test_it_registers_once_however_often_it_is_called(monkeypatch):
    factory = Factory()
    install(monkeypatch, factory)
    assert vllm_plugin.register()
    assert vllm_plugin.register()
    assert factory.registered == {"trimaran": vllm_plugin.ENGINE}


@pytest.mark.parametrize("factory", [None, OtherFactory()])
def test_a_vllm_without_the_interface_is_left_alone(monkeypatch, caplog, factory):
    install(monkeypatch, factory)
    with caplog.at_level("INFO"):
        assert not vllm_plugin.register()
    assert "trimaran" in caplog.text


def test_the_entry_point_is_vllms():
    """As packaged: an environment may hold an older installation of this tree."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))[
        "project"
    ]
    value = project["entry-points"]["vllm.general_plugins"]["trimaran"]
    assert EntryPoint("trimaran", value, "vllm.general_plugins").load() is vllm_plugin.register


def test_the_module_itself_imports_next_to_nothing():
    code = "import sys, services.rollout.vllm.plugin; print('torch' in sys.modules, 'vllm' in sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.split() == ["False", "False"]
