"""What this machine has to compute on, as far as the choice of devices asks.

It is read without torch and without opening a device: what starts processes must hold none.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import runpy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NPU_NODES = "/dev/davinci[0-9]*"
"""One node a die; the kernel driver makes them, with or without CANN."""
NVML = "libnvidia-ml.so.1"
"""NVIDIA's management library, from the driver. It counts devices and makes no CUDA context."""
PACKAGES = ("torch_npu", "vllm_ascend", "mindspeed", "scipy", "triton")
"""What an NPU may need."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Example: Machine(variables={}, packages=frozenset(), num_npus=0, num_gpus=2)"""

    variables: Mapping[str, str]
    """The environment's variables."""
    packages: frozenset[str]
    """Those of PACKAGES that can be imported."""
    num_npus: int
    num_gpus: int
    """As nvidia-smi counts; 0 where the installed torch has no CUDA."""


def read_machine(variables: Mapping[str, str], npu_nodes: str = NPU_NODES) -> Machine:
    """This machine, seen by a process with these environment variables."""
    return Machine(
        variables=variables,
        packages=frozenset(name for name in PACKAGES if importlib.util.find_spec(name)),
        num_npus=len(glob.glob(npu_nodes)),
        num_gpus=_count_gpus() if _torch_has_cuda() else 0,
    )


def _torch_has_cuda() -> bool:
    """As `torch.version.cuda` says; that file holds constants only and imports no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return version["cuda"] is not None


def _count_gpus() -> int:
    """Needs no CUDA context; torch.cuda counts by the same calls where it may not make one."""
    with _nvml() as nvml:
        count = ctypes.c_uint(0)
        failed = nvml is None or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return 0 if failed else count.value


class _GpuMemory(ctypes.Structure):
    """nvmlMemory_t of nvml.h; bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes. Example: GpuMemory(total=80 << 30, free=79 << 30)"""

    total: int
    free: int


def read_gpus(machine: Machine) -> tuple[GpuMemory, ...]:
    """Memory of each of its GPUs, as nvidia-smi numbers them; nothing where one does not report it."""
    sizes: list[GpuMemory] = []
    with _nvml() as nvml:
        for index in range(machine.num_gpus):
            assert nvml is not None, "who counted them has it"
            handle, memory = ctypes.c_void_p(), _GpuMemory()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                return ()
            if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
                return ()
            sizes.append(GpuMemory(memory.total, memory.free))
    return tuple(sizes)


def read_gpu_memory(machine: Machine) -> int | None:
    """Bytes of the largest of its GPUs, so that nothing is refused because of a small one beside it; None where there are none, or one does not report it."""
    return max((gpu.total for gpu in read_gpus(machine)), default=None)


@contextmanager
def _nvml() -> Generator[Any]:
    """The library, or None without a driver of NVIDIA's."""
    try:
        nvml = ctypes.CDLL(NVML)
    except OSError:
        nvml = None
    if nvml is None or nvml.nvmlInit_v2():
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()
