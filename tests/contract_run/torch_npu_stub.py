"""A torch_npu without a device, so that packages that import it load on the CPU.

Nothing finds it by accident: no file here is called torch_npu, and only `install` puts it, and what
comes with it on an NPU (acl, torchair, triton), among this process's modules. Whatever is looked up
in them exists and does nothing. The few answers on which a package decides something are `Npu`'s.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

PACKAGES = ("torch_npu", "acl", "torchair", "triton")
DEVICE_NAME = "Ascend910B3"
"""One of the chips that vllm-ascend knows as A2."""
TRITON_CLASSES = {
    "triton.compiler": ("CompiledKernel",),
    "triton.runtime.autotuner": ("Autotuner",),
    "triton.runtime.jit": ("JITFunction", "KernelInterface"),
}
"""From which others inherit, or of which torch asks whether a thing is one."""


class Anything(ModuleType):
    """A module in which every name is defined."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class Finder:
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        is_ours = name.partition(".")[0] in PACKAGES
        return ModuleSpec(name, self, is_package=True) if is_ours else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = f"stub/{module.__name__}"


class Npu(Anything):
    """torch.npu: one device, which is the CPU."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def set_device(self, *_: Any) -> None: ...

    def synchronize(self, *_: Any) -> None: ...

    def get_device_name(self, *_: Any) -> str:
        return DEVICE_NAME

    def get_device_properties(self, *_: Any) -> SimpleNamespace:
        return SimpleNamespace(name=DEVICE_NAME, total_memory=64 << 30)


def install() -> None:
    """In this process, and for good."""
    # It asks for triton when it is first imported, and means the real one, which some builds of
    # torch bring along.
    importlib.import_module("torch.utils.flop_counter")
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
    rename_privateuse1_backend("npu")
    npu: Any = Npu("torch.npu")
    torch.npu = sys.modules["torch.npu"] = npu  # type: ignore[attr-defined]
    torch.distributed.is_hccl_available = lambda: True  # type: ignore[attr-defined]
    _install_triton()


def _install_triton() -> None:
    for module, names in TRITON_CLASSES.items():
        _define(module, **{name: type(name, (), {}) for name in names})
    driver: Any = MagicMock(name="triton.runtime.driver")
    driver.active.get_current_target.return_value.backend = "npu"
    sys.modules["triton.runtime.driver"] = driver
    _define("triton.runtime", driver=driver)
    _define("triton", __version__="3.2.2")


def _define(module: str, **names: Any) -> None:
    vars(importlib.import_module(module)).update(names)
