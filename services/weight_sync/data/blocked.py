"""A tensor that lies in memory as its blocks, one after the other, and is cut along another axis than the first.

No view shows it as a whole. Whoever takes a part of it at its blocks' edges and copies that elsewhere, as
an engine's loader does, copies out of the blocks. Whatever else is done with it is done with an
ordinary tensor, assembled for that.

It is a tensor subclass with `__torch_dispatch__`; torch's notes on extending it describe what that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.utils._pytree import tree_map


class BlockedTensor(torch.Tensor):
    """Only to be read.

    Example:

        weight = BlockedTensor(elements, (rows, 6), axis=1, bounds=(0, 2, 4, 6))
        parameter.copy_(weight.narrow(1, 2, 4))  # out of two blocks
    """

    # A call in Python goes on to the operators that it consists of, and these come to us.
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    _elements: torch.Tensor
    _axis: int
    _bounds: tuple[int, ...]

    def __new__(
        cls, elements: torch.Tensor, shape: Sequence[int], axis: int, bounds: Sequence[int]
    ) -> BlockedTensor:
        """`elements`: of all blocks, one dimension, each block row-major. `bounds`: where each begins along
        `axis`, and where the last one ends."""
        wrapper: Any = torch.Tensor._make_wrapper_subclass
        blocked: BlockedTensor = wrapper(
            cls, tuple(shape), dtype=elements.dtype, device=elements.device
        )
        blocked._elements, blocked._axis, blocked._bounds = elements, axis, tuple(bounds)
        return blocked

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.slice.Tensor and (part := args[0]._part(*args[1:])) is not None:
            return part
        if func is torch.ops.aten.copy_.default and args[0].shape == args[1].shape:
            args[1]._copy_to(args[0])
            return args[0]
        return func(*tree_map(assembled, args), **tree_map(assembled, kwargs or {}))

    def _part(
        self, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
    ) -> BlockedTensor | None:
        """None for what is no union of blocks."""
        length = self.shape[self._axis]
        start, stop, step = slice(start, stop, step).indices(length)
        if axis != self._axis or step != 1 or start >= stop or not {start, stop} <= {*self._bounds}:
            return None
        shape = list(self.shape)
        shape[axis] = stop - start
        size = self.numel() // length
        bounds = [bound - start for bound in self._bounds if start <= bound <= stop]
        return BlockedTensor(self._elements[start * size : stop * size], shape, axis, bounds)

    def _copy_to(self, target: torch.Tensor) -> None:
        axis, lengths = self._axis, [stop - start for start, stop in pairwise(self._bounds)]
        rows, columns = self.shape[:axis], self.shape[axis + 1 :]
        if len(set(lengths)) == 1:
            # One copy for all blocks takes half the time of one for each.
            blocks = self._elements.view(len(lengths), *rows, lengths[0], *columns)
            target.unflatten(axis, (len(lengths), lengths[0])).copy_(blocks.movedim(0, axis))
            return
        size = self.numel() // self.shape[axis]
        for start, length in zip(self._bounds, lengths, strict=False):
            block = self._elements[start * size : (start + length) * size]
            target.narrow(axis, start, length).copy_(block.view(*rows, length, *columns))


def assembled(value: Any) -> Any:
    """An ordinary tensor in the place of a blocked one; anything else as it is."""
    if not isinstance(value, BlockedTensor):
        return value
    whole = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    value._copy_to(whole)
    return whole
