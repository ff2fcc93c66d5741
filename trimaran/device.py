"""Picks npu, cuda or cpu and the collective backend that goes with it.

The only file that knows these words. torch and the vendors' plugins are
imported inside functions, in the order that their vendors document, so that a
process without torch can import this module.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trimaran.errors import InputError

if TYPE_CHECKING:
    import torch

DeviceName = Literal["auto", "npu", "cuda", "cpu"]

BACKENDS = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}
VISIBLE_DEVICES = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES", "cpu": ""}
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
NPU_NODES = "/dev/davinci[0-9]*"
"""One node a die; the kernel driver makes them, with or without CANN."""
CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
"""Set by CANN's set_env.sh."""


@dataclass(frozen=True, slots=True)
class Device:
    """Example: pick("cpu") == Device("cpu", "gloo"); pick("auto").torch_device(index=1)"""

    kind: str
    """npu, cuda or cpu."""
    backend: str
    """hccl, nccl or gloo."""

    @property
    def on_host(self) -> bool:
        """Tensors of this device lie in host memory."""
        return self.kind == "cpu"

    def activate(self, index: int = 0, *, megatron: bool = False) -> None:
        """Make device `index` current in the calling thread.

        Call it in every thread that makes a collective call: a thread starts
        without a device context. `megatron` is for a trainer, before it
        imports megatron.
        """
        if self.kind == "npu":
            os.environ[AUTOLOAD] = "0"
            importlib.import_module("torch_npu")
            importlib.import_module("torch_npu.contrib.transfer_to_npu")
            if megatron:
                _import_adaptor()
        runtime = self._runtime()
        if runtime is not None:
            runtime.set_device(index)

    def torch_device(self, index: int = 0) -> torch.device:
        import torch

        return torch.device(self.kind) if self.on_host else torch.device(self.kind, index)

    def synchronize(self) -> None:
        """Wait for everything queued on the calling thread's device."""
        runtime = self._runtime()
        if runtime is not None:
            runtime.synchronize()

    def _runtime(self) -> Any | None:
        """torch.npu or torch.cuda; None on a host."""
        if self.on_host:
            return None
        import torch

        return getattr(torch, self.kind)


def pick(name: DeviceName) -> Device:
    """The device that the configuration names; "auto" takes npu, then cuda, then cpu.

    Call it before the process imports torch: with torch-npu installed and no
    CANN even `import torch` fails while plugins load by themselves, so this
    turns that off and `activate` imports the plugin on purpose.
    Raises InputError when a named device is not there.
    """
    has_plugin = importlib.util.find_spec("torch_npu") is not None
    if has_plugin:
        os.environ[AUTOLOAD] = "0"
    if name == "auto":
        name = _best(has_plugin)
    elif name == "npu" and (missing := _missing_for_npu(has_plugin)):
        raise InputError(f"device npu: {missing}, or choose device cuda, cpu or auto")
    elif name == "cuda" and not _cuda_is_available():
        raise InputError(
            "device cuda: torch finds none; install the cuda extra and check"
            " CUDA_VISIBLE_DEVICES, or choose device cpu or auto"
        )
    return Device(name, BACKENDS[name])


def _best(has_plugin: bool) -> Literal["npu", "cuda", "cpu"]:
    if not _missing_for_npu(has_plugin):
        return "npu"
    return "cuda" if _cuda_is_available() else "cpu"


def _missing_for_npu(has_plugin: bool) -> str:
    """What an NPU still needs here and how to get it; empty when it can be used."""
    if not has_plugin:
        return "torch_npu is not installed; install the npu extra"
    if not glob.glob(NPU_NODES) or os.environ.get(VISIBLE_DEVICES["npu"]) == "":
        return (
            f"no device {NPU_NODES} is visible; give the container its devices and check"
            f" {VISIBLE_DEVICES['npu']}"
        )
    if not any(os.environ.get(variable) for variable in CANN_VARIABLES):
        return "CANN is not set up in this shell; source its set_env.sh"
    return ""


def _cuda_is_available() -> bool:
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return torch.cuda.is_available()


def _import_adaptor() -> None:
    """MindSpeed reads the command line as it is imported and makes each option that it does not know
    a field of megatron-core's configuration (`get_mindspeed_args`, once a process); ours are none."""
    given = sys.argv
    sys.argv = given[:1]
    try:
        importlib.import_module("mindspeed.megatron_adaptor")
    finally:
        sys.argv = given
