"""A worker whose linear layers compute with their parameters as they are loaded, as on an accelerator.

vLLM on the host packs them; here each does what vLLM itself does with one that it must not pack.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers import utils
from vllm.v1.worker.cpu_worker import CPUWorker


def keep_plain(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = keep_plain


class PlainWorker(CPUWorker):
    """Named to vLLM, which imports this module in its worker's process."""
