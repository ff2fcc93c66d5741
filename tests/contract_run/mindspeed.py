"""MindSpeed's own adaptor over megatron-core, as a trainer on an NPU has it, on the stub torch_npu."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from tests.contract_run import torch_npu_stub
from trimaran.host.device import Device


def adapt(_: Any) -> None:
    """Before megatron is imported. `MINDSPEED_SOURCE` names the folder that holds the package `mindspeed`."""
    torch_npu_stub.install()
    sys.path.append(os.environ["MINDSPEED_SOURCE"])
    Device("npu", "hccl").activate(megatron=True)
    # MindSpeed gives Parameter a `type` of its own, which says "cuda" of an NPU's. On the CPU it is
    # services/trainer/megatron/cpu.py that says so, by way of Tensor's.
    del torch.nn.Parameter.type
