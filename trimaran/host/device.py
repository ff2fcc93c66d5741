"""Picks npu, cuda or cpu and the collective backend that goes with it.

The only file that knows how they are used. torch and the vendors' plugins are
imported inside functions, in the order that their vendors document, so that a
process without torch can import this module.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trimaran.errors import InputError
from trimaran.host.machine import NPU_NODES, Machine, read_machine
from trimaran.host.page_lock import Unlock, lock_pages

if TYPE_CHECKING:
    import torch

Kind = Literal["npu", "cuda", "cpu"]
DeviceName = Literal["auto", "npu", "cuda", "cpu"]

BACKENDS: dict[Kind, str] = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}
VISIBLE_DEVICES: dict[Kind, str] = {
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "cuda": "CUDA_VISIBLE_DEVICES",
    "cpu": "",
}
GPU_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
"""Set by CANN's set_env.sh."""
DERIVED = "torch_npu would make the groups in which weights travel out of the trainer's own ranks"
"""ProcessGroupHCCL.cpp, createHCCLCommEx and createHCCLCommOrigin: a group that names its ranks, as
each of ours does, becomes a part of the default group's communicator, where there is one."""
SILENT = "a failed collective of Megatron or of the engine would go unnoticed"
"""ProcessGroupHCCL.cpp: only 1 and 3 end the process after an error; work.wait() never raises it."""
REFUSED_ON_NPU: dict[str, tuple[Callable[[str], bool], str]] = {
    "RANK_TABLE_FILE": (bool, DERIVED),
    "ROOTINFO_SUBCOMM_ENABLE": (lambda value: _number(value) != 0, DERIVED),
    "HCCL_ASYNC_ERROR_HANDLING": (lambda value: _number(value) in (0, 2), SILENT),
}
"""By variable: which values are refused, and what would happen."""
DETERMINISTIC: dict[Kind, dict[str, str]] = {
    "cpu": {},
    # https://docs.nvidia.com/cuda/cublas/#results-reproducibility; torch asks for it.
    # megatron-core's arguments.py takes any NCCL algorithm but NVLS for its deterministic mode.
    "cuda": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "^NVLS"},
    # As MindSpeed sets them for its --npu-deterministic. Not tried on an NPU.
    "npu": {"HCCL_DETERMINISTIC": "true", "LCCL_DETERMINISTIC": "1", "CLOSE_MATMUL_K_SHIFT": "1"},
}
"""Environment variables without which equal inputs may give other bits. What is set already stays."""
EXACT_KINDS = ("cpu", "cuda")
"""Where torch is known to compare int16, int32 and int64; not yet known of an NPU."""


@dataclass(frozen=True, slots=True)
class Device:
    """Example: pick("cpu") == Device("cpu", "gloo"); pick("auto").torch_device(index=1)"""

    kind: Kind
    backend: str
    """hccl, nccl or gloo."""

    @property
    def on_host(self) -> bool:
        """Tensors of this device lie in host memory."""
        return self.kind == "cpu"

    @property
    def eager(self) -> bool:
        """Whether vLLM computes without captured graphs here, unless the configuration says."""
        return self.kind != "cuda"

    def activate(self, index: int = 0, *, megatron: bool = False) -> None:
        """Make device `index`, of those that this process sees, current in the calling thread.

        Call it in every thread that makes a collective call: a thread starts
        without a device context. `megatron` is for a trainer, before it
        imports megatron: MindSpeed's adaptor then rebinds torch.cuda, torch.jit
        and megatron-core for the whole process (it imports torch_npu's
        transfer_to_npu itself), which vLLM's own process must be spared.
        """
        if self.kind == "npu":
            os.environ[AUTOLOAD] = "0"
            importlib.import_module("torch_npu")
            if megatron:
                _import_adaptor()
        runtime = self._runtime()
        if runtime is not None:
            runtime.set_device(index)

    def use_own_stream(self) -> None:
        """What the calling thread queues from here on does not stand behind what other threads have
        queued: all start with the same stream. After `activate`."""
        runtime = self._runtime()
        if runtime is not None:
            runtime.set_stream(runtime.Stream())

    def lock_pages(self, address: int, num_bytes: int, index: int = 0) -> Unlock | None:
        """Locks mapped host memory, for fast copies; see `page_lock`. Makes device `index` current. None
        where there is nothing to undo: on a host, and where the device refuses."""
        if self.on_host:
            return None
        self.activate(index)
        return lock_pages(self.kind, address, num_bytes)

    def torch_device(self, index: int = 0) -> torch.device:
        import torch

        return torch.device(self.kind) if self.on_host else torch.device(self.kind, index)

    def be_deterministic(self) -> None:
        """Equal inputs give equal bits from now on; an operation that cannot do so raises. Call it
        before the device computes and before ranks meet. A host needs nothing: its threads share sums
        out in a fixed way, and Gloo adds in a fixed order."""
        for variable, value in DETERMINISTIC[self.kind].items():
            os.environ.setdefault(variable, value)
        if self.on_host:
            return
        import torch

        torch.use_deterministic_algorithms(True)
        # Nothing of ours reads memory that it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

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


def pick(name: DeviceName, machine: Machine | None = None) -> Device:
    """The device that the configuration names; "auto" takes npu, then cuda, then cpu.

    Call it before the process imports torch: with torch-npu installed and no
    CANN even `import torch` fails while plugins load by themselves, so this
    turns that off and `activate` imports the plugin on purpose.
    Raises InputError when a named device is not there, or a variable would harm a run on it.
    """
    machine = machine or read_machine(os.environ)
    if "torch_npu" in machine.packages:
        os.environ[AUTOLOAD] = "0"
    kind = resolve(name, machine)
    if faults := [*find_missing(kind, machine), *find_harmful(kind, machine)]:
        raise InputError("\n".join(f"device {kind}: {what}" for what in faults))
    return Device(kind, BACKENDS[kind])


def resolve(name: DeviceName, machine: Machine) -> Kind:
    """What `name` means there; a named kind is not checked."""
    if name != "auto":
        return name
    # What is still missing there, such as CANN, is then refused: who has NPUs means no CPU.
    if "torch_npu" in machine.packages and find_visible("npu", machine):
        return "npu"
    return "cpu" if find_missing("cuda", machine) else "cuda"


def kinds_of(machine: Machine) -> frozenset[Kind]:
    """What there is to compute on, whether or not all that it needs is installed."""
    counts: dict[Kind, int] = {"npu": machine.num_npus, "cuda": machine.num_gpus, "cpu": 1}
    return frozenset(kind for kind, count in counts.items() if count)


def is_gpu_uuid(name: str) -> bool:
    """Whether it names a GPU or a part of one (MIG), whole or by its beginning, as CUDA_VISIBLE_DEVICES takes it.

    Example: is_gpu_uuid("GPU-8932f937")
    """
    return GPU_UUID.fullmatch(name) is not None


def find_visible(kind: Kind, machine: Machine) -> tuple[str, ...]:
    """The devices that a process sees there, as its visible-devices variable names them.

    Numbers count from 0, as npu-smi's logical numbers and nvidia-smi's. A GPU may also have a
    UUID, which is believed. What the vendors' runtimes would not accept is not in sight.
    """
    if kind == "npu":
        return _visible_npus(machine.variables.get(VISIBLE_DEVICES[kind]), machine.num_npus)
    if kind == "cuda":
        return _visible_gpus(machine.variables.get(VISIBLE_DEVICES[kind]), machine.num_gpus)
    return ()


def find_hidden(names: Iterable[str], kind: Kind, machine: Machine) -> list[str]:
    """Those that a process does not see there. A GPU's UUID is believed where no variable says which
    are in sight."""
    visible = find_visible(kind, machine)
    believed = bool(visible) and kind == "cuda" and VISIBLE_DEVICES[kind] not in machine.variables
    return [n for n in names if n not in visible and not (believed and is_gpu_uuid(n))]


def _visible_npus(listed: str | None, count: int) -> tuple[str, ...]:
    """As torch_npu counts them (torch_npu/npu/__init__.py, _device_count_ascend_hal): up to the
    first that is no number or not there, and none at all unless they ascend."""
    if listed is None:
        return tuple(map(str, range(count)))
    seen: list[int] = []
    for text in re.split(r"[^\d,]", listed)[0].split(","):
        if not text:
            break
        if seen and int(text) <= seen[-1]:
            return ()
        if int(text) >= count:
            break
        seen.append(int(text))
    return tuple(map(str, seen))


def _visible_gpus(listed: str | None, count: int) -> tuple[str, ...]:
    """As CUDA counts them: up to the first that is not there, and none at all where one stands
    twice."""
    if listed is None:
        return tuple(map(str, range(count)))
    seen: list[str] = []
    for text in map(str.strip, listed.split(",")):
        is_number = text.isdecimal() and int(text) < count
        if not is_number and not (count and is_gpu_uuid(text)):
            break
        seen.append(str(int(text)) if is_number else text)
    return tuple(seen) if len(set(seen)) == len(seen) else ()


def find_missing(kind: Kind, machine: Machine) -> list[str]:
    """What this kind of device still needs there and how to get it, a line each."""
    visible = find_visible(kind, machine)
    if kind == "cuda" and not visible:
        return [
            "no GPU is in sight, or the installed torch has no CUDA; install the cuda extra and"
            f" check nvidia-smi and {VISIBLE_DEVICES[kind]}"
        ]
    if kind != "npu":
        return []
    missing: list[str] = []
    if "torch_npu" not in machine.packages:
        missing.append("torch_npu is not installed; install by deploy/npu/install.sh")
    if not visible:
        missing.append(
            f"no device {NPU_NODES} is visible; give the container its devices and check"
            f" {VISIBLE_DEVICES[kind]}"
        )
    if not any(machine.variables.get(variable) for variable in CANN_VARIABLES):
        missing.append("CANN is not set up in this shell; source its set_env.sh")
    return missing


def find_harmful(kind: Kind, machine: Machine) -> list[str]:
    """Variables with which a run on this kind of device would go wrong, a line each."""
    if kind != "npu":
        return []
    given = machine.variables
    return [
        f"{variable}={given[variable]} is set, with which {consequence}; unset it"
        for variable, (is_refused, consequence) in REFUSED_ON_NPU.items()
        if variable in given and is_refused(given[variable])
    ]


def _number(value: str) -> int:
    """As C's strtol, by which torch_npu reads it: 0 for what is no number."""
    found = re.match(r"\s*[+-]?\d+", value)
    return int(found[0]) if found else 0


def _import_adaptor() -> None:
    """MindSpeed reads the command line as it is imported and makes each option that it does not know
    a field of megatron-core's configuration (`get_mindspeed_args`, once a process); ours are none."""
    given = sys.argv
    sys.argv = given[:1]
    try:
        importlib.import_module("mindspeed.megatron_adaptor")
    finally:
        sys.argv = given
