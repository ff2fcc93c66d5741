"""The adapters of a run in vLLM, of which there is one for all requests.

vLLM keeps A and B of each layer in tensors that its kernels read, and its captured graphs, too. It would fill
them from a file. Here one adapter of zeros is made known to it under a number, and versions are written into
the tensors in the pause of a commit, like other parameters.

On the host vLLM gathers A and B once for each token of a batch. With one adapter two products do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.lora.request import LoRARequest

from services.rollout.vllm.loading.in_place import find_part
from services.rollout.vllm.loading.load import READER, own_host
from services.rollout.vllm.loading.modules import SLOT, Finder
from trimaran.model.tensor_names import is_adapter
from weights.memory.shadow import open_blocks

POLICY = LoRARequest("policy", 1, "written by trimaran")
"""What every request for the policy carries. No path is read: vLLM knows the number already."""


def write_adapters(runner: Any, path: str, description: dict[str, Any]) -> None:
    """Those of a shadow, after a load by vLLM, which has dropped every adapter."""
    manager = runner.lora_manager
    manager.add_dummy_lora(POLICY, rank=1)
    manager._adapter_manager.activate_adapter(POLICY.lora_int_id)
    finder = Finder(runner.get_model())
    for stored in open_blocks(path, description, READER, own_host()):
        if is_adapter(stored.info.name):
            for copy in find_part(finder, stored.info).prepare(stored):
                copy.make()


def install_fast_adapters() -> None:
    wrapper: Any = PunicaWrapperCPU
    wrapper.add_lora_linear = add_adapter


def add_adapter(
    wrapper: Any,
    output: torch.Tensor,
    x: torch.Tensor,
    a_stacked: tuple[torch.Tensor, ...],
    b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    slices: tuple[int, ...],
    **kwargs: Any,
) -> None:
    """In the place of vLLM's `add_lora_linear`: x A^T B^T is added to each slice of the output. The requests of a
    batch carry the adapter all, or none of them does. `scale` is 1."""
    if wrapper.no_lora:
        return
    for part, a, b in zip(output.split(slices, dim=1), a_stacked, b_stacked, strict=True):
        part.addmm_(F.linear(x, a[SLOT, 0]), b[SLOT, 0].t())
