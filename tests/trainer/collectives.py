"""A float64 tensor in a collective fails the test: MindSpeed's all-reduce skips it without a word.

(mindspeed/core/megatron_basic/requirements_basic.py, `torch_all_reduce_double_dtype_bypass_wrapper`.)
All ranks that these tests start are guarded, so each layout of theirs is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

NAMES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast"),
    *("reduce", "reduce_scatter_tensor", "scatter"),
)


def refuse_float64() -> None:
    """In this process; any number of times."""
    for name in NAMES:
        call = getattr(dist, name)
        if not hasattr(call, "guarded"):
            setattr(dist, name, _guarded(call))


def _guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def guarded(*args: Any, **options: Any) -> Any:
        if any(tensor.dtype == torch.float64 for tensor in _tensors([*args, *options.values()])):
            raise TypeError(f"{call.__name__} of float64: MindSpeed would lose it; send float32")
        return call(*args, **options)

    guarded.guarded = True  # type: ignore[attr-defined]
    return guarded


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value
