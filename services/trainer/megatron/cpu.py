"""Lets megatron-core run on the CPU.

megatron-core asks `torch.cuda` for its device, streams and random state. On the
CPU each of its modules therefore sees a proxy of `torch` whose `cuda` namespace
is the CPU; the real `torch` is untouched for everybody else. Two methods of
tensors (`type`, `cuda`) cannot be scoped by module and look at their caller.
Three functions of megatron-core (`FUNCTIONS`) reach past `torch.cuda` or ask a
tensor where it is, and are replaced. Two (`WRAPPED`) need what Gloo lacks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

CPU = torch.device("cpu")
FACTORIES = ("tensor", "zeros", "ones", "empty", "empty_like", "zeros_like", "full", "arange")
MODULES = (
    "distributed",
    "models.gpt",
    "models.gpt.gpt_layer_specs",
    "optimizer",
    "parallel_state",
    "pipeline_parallel",
    "tensor_parallel",
    "transformer.moe.moe_layer",
)


def _on_host(tensor: Any, as_numpy: bool = False, **_: Any) -> Any:
    """megatron-core converts what it moves from a device, and forgets what is on the host already."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "tensor_parallel.random": {
        "_get_cuda_rng_state": lambda *_, **__: torch.get_rng_state(),
        "_set_cuda_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    },
    "transformer.moe.token_dispatcher": {"maybe_move_tensor_to_cpu": _on_host},
}


Collective = Callable[..., torch.Tensor]


def _gather_unequal(original: Collective) -> Collective:
    """Gloo gathers equal parts only."""

    def gather(
        input_: torch.Tensor, group: Any, output_split_sizes: Any = None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        count = group.size()
        if output_split_sizes is None or count == 1:
            return original(input_, group, output_split_sizes, *args, **kwargs)
        sizes = [int(size) for size in output_split_sizes]
        output = input_.new_empty(sum(sizes), *input_.shape[1:])
        own = torch.cat([input_] * count)
        dist.all_to_all_single(output, own, sizes, [len(input_)] * count, group=group)
        return output

    return gather


def _reduce_scatter_unequal(original: Collective) -> Collective:
    """Gloo reduces to equal parts only."""

    def scatter(
        input_: torch.Tensor, group: Any, input_split_sizes: Any = None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        count = group.size()
        if input_split_sizes is None or count == 1:
            return original(input_, group, input_split_sizes, *args, **kwargs)
        sizes = [int(size) for size in input_split_sizes]
        own = sizes[group.rank()]
        parts = input_.new_empty(count, own, *input_.shape[1:])
        given = parts.flatten(0, 1)
        dist.all_to_all_single(given, input_.contiguous(), [own] * count, sizes, group=group)
        return parts.sum(0)

    return scatter


WRAPPED: dict[str, dict[str, Callable[[Collective], Collective]]] = {
    "tensor_parallel.mappings": {
        "_gather_along_first_dim": _gather_unequal,
        "_reduce_scatter_along_first_dim": _reduce_scatter_unequal,
    },
}
"""Each is given megatron-core's own."""


class _Stream:
    """Work on the CPU is done when the call returns, so there is nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self) -> _Stream:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    __hash__ = object.__hash__


class _CpuNamespace(ModuleType):
    """Stands where megatron-core looks for `torch.cuda`."""

    Stream = _Stream

    def __init__(self) -> None:
        super().__init__("torch.cuda")

    def current_device(self) -> torch.device:
        return CPU

    def current_stream(self, *_: Any) -> _Stream:
        return _Stream()

    default_stream = current_stream

    def stream(self, _: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def synchronize(self, *_: Any) -> None: ...

    empty_cache = set_device = synchronize

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class _TorchProxy(ModuleType):
    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = _CpuNamespace()
        for name in FACTORIES:
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        return factory(*args, **kwargs)

    return make


@functools.cache
def let_megatron_run_on_cpu() -> None:
    """Load the parts of megatron-core that we use and give them the proxy. Once a process."""
    with _without_compilers():
        for name in MODULES:
            importlib.import_module(f"megatron.core.{name}")
    for name, functions in FUNCTIONS.items():
        vars(sys.modules[f"megatron.core.{name}"]).update(functions)
    for name, wrappers in WRAPPED.items():
        names = vars(sys.modules[f"megatron.core.{name}"])
        names.update({one: wrap(names[one]) for one, wrap in wrappers.items()})
    proxy = _TorchProxy()
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and vars(module).get("torch") is torch:
            vars(module)["torch"] = proxy
    _scope_tensor_methods()


@contextlib.contextmanager
def _without_compilers() -> Iterator[None]:
    """Decorating with torch.compile loads its compilers, seconds of start, for fusions that we
    keep off."""
    real = torch.compile
    torch.compile = lambda function: function  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = real


def _scope_tensor_methods() -> None:
    real_type, real_cuda = torch.Tensor.type, torch.Tensor.cuda

    def tensor_type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = real_type(self, *args, **kwargs)
        if isinstance(answer, str) and _called_by_megatron():
            return answer.replace("torch.", "torch.cuda.", 1)
        return answer

    def tensor_cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self if _called_by_megatron() else real_cuda(self, *args, **kwargs)

    torch.Tensor.type = tensor_type  # type: ignore[method-assign]
    torch.Tensor.cuda = tensor_cuda  # type: ignore[method-assign]


def _called_by_megatron() -> bool:
    # Frames: this function, the tensor method, its caller.
    return sys._getframe(2).f_globals.get("__name__", "").startswith("megatron.")
