"""How one parameter of megatron-core is made of Hugging Face tensors, and how it goes back.

    kind     parameter                    Hugging Face                 split over tensor-parallel ranks
    whole    norms, routers               the same                     on every rank
    fixed    biases of routers            the same, never trained      on every rank
    rows     embeddings, output layer     the same                     by row, padded
    columns  linear_proj, linear_fc2      o_proj, down_proj            by column
    gated    linear_fc1 [2 * F, C]        gate_proj, up_proj           each by row
    qkv      linear_qkv [K(R + 2)D, C]    q_proj, k_proj, v_proj       by key/value head; with more
                                                                       ranks than those, by row
    element  linear_fc1, linear_fc2       one of a stack, transposed   an expert: not split
             of an expert                 of all experts

Those of an expert are `gated` and `columns` over the ranks that have its slices; it is sent whole (`sent_whole`).

K key/value heads, R query heads a key, D channels of a head, C of the model, F of the MLP.

torch is imported where tensors are joined, so that `trimaran plan` can ask a family without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from trimaran.config.parallel import RankPlace

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]
Tensors: TypeAlias = "Sequence[torch.Tensor]"


class Share(NamedTuple):
    """Elements start..stop of a Hugging Face tensor, along the dimension that is split.

    Example:
        Share(0, 288, weight)  # rank 0 of 2 holds the first 288 of 576 rows
    """

    start: int
    stop: int
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class MappingRule:
    """`shard(tensors, rank, size)` gives a tensor-parallel rank's parameter, `shares(parameter, rank,
    size)` the rank's share of each Hugging Face tensor, both in the order of `names`.

    Example: gated(("mlp.gate_proj.weight", "mlp.up_proj.weight"), (1536, 576))
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    """Names of the Hugging Face tensors."""
    shard: Callable[[Tensors, int, int], torch.Tensor]
    shares: Callable[[torch.Tensor, int, int], Sequence[Share]]
    replicated: bool = False
    """Every tensor-parallel rank holds the whole tensor."""
    of_expert: bool = False
    """The parameter is of one expert, which `expert_tensor` ranks share."""
    is_copy: bool = False
    """The parameter is a copy: another pipeline stage holds it too, and sends it."""
    most_ranks: int = sys.maxsize
    """With more of them a rank's parameter is no share of any tensor: `shares` takes that of all ranks,
    one after the other."""
    axis: int = 0
    """Along which tensors are split: 1 of `columns`."""
    own_shape: Shape | None = None
    """The shape of a parameter that has not the rows of its tensors: an element of a stack."""
    is_fixed: bool = False
    """It never trains, and is in float32 whatever the model's dtype is."""

    def at(self, place: RankPlace) -> tuple[int, int]:
        """The rank's number among those that share the parameter, and how many they are."""
        if self.of_expert:
            return place.expert_tensor, place.layout.expert_tensor
        return place.tensor, place.layout.tensor

    def inside(self, prefix: str) -> MappingRule:
        """With `prefix` before the Hugging Face names."""
        return replace(self, names=tuple(prefix + name for name in self.names))


Rules = Mapping[str, MappingRule]
"""By the parameter's name in megatron-core."""


def whole(name: str, shape: Shape) -> MappingRule:
    return MappingRule(
        (name,),
        (shape,),
        shard=lambda tensors, rank, size: tensors[0],
        shares=lambda parameter, rank, size: [Share(0, len(parameter), parameter)],
        replicated=True,
    )


def fixed(name: str, shape: Shape) -> MappingRule:
    """`whole` of what does not train."""
    return replace(whole(name, shape), is_fixed=True)


def rows(name: str, shape: Shape) -> MappingRule:
    """Padded with zeros to a multiple of the ranks."""
    num_rows = shape[0]

    def shard(tensors: Tensors, rank: int, size: int) -> torch.Tensor:
        (tensor,) = tensors
        if missing := -len(tensor) % size:
            tensor = _join([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
        return tensor.chunk(size)[rank]

    def shares(parameter: torch.Tensor, rank: int, size: int) -> Sequence[Share]:
        length = len(parameter)
        start, stop = (min(place * length, num_rows) for place in (rank, rank + 1))
        return [Share(start, stop, parameter[: stop - start])]

    return MappingRule((name,), (shape,), shard, shares)


def columns(name: str, shape: Shape) -> MappingRule:
    def shares(parameter: torch.Tensor, rank: int, size: int) -> Sequence[Share]:
        length = parameter.shape[1]
        return [Share(rank * length, (rank + 1) * length, parameter)]

    def shard(tensors: Tensors, rank: int, size: int) -> torch.Tensor:
        return tensors[0].chunk(size, 1)[rank]

    return MappingRule((name,), (shape,), shard, shares, axis=1)


def gated(names: tuple[str, str], shape: Shape) -> MappingRule:
    """`shape`: of each."""

    def shard(tensors: Tensors, rank: int, size: int) -> torch.Tensor:
        return _join([tensor.chunk(size)[rank] for tensor in tensors])

    def shares(parameter: torch.Tensor, rank: int, size: int) -> Sequence[Share]:
        return [_rows(half, rank) for half in parameter.chunk(2)]

    return MappingRule(names, (shape, shape), shard, shares)


def sent_whole(rule: MappingRule, expert: int) -> MappingRule:
    """The rule of an expert, whose tensors are one block each in every layout: one of the ranks that share it sends
    what all of them have, and they take turns from expert to expert."""

    def shares(parameter: torch.Tensor, rank: int, size: int) -> Sequence[Share]:
        if rank != expert % size:
            return [Share(0, 0, parameter[:0])] * len(rule.names)
        slices = [rule.shares(one, n, size) for n, one in enumerate(parameter.chunk(size))]
        tensors = [
            _joined([one.tensor for one in parts], rule.axis) for parts in zip(*slices, strict=True)
        ]
        return [Share(0, len(tensor), tensor) for tensor in tensors]

    return replace(rule, shares=shares, of_expert=True, most_ranks=1)


def element(name: str, shape: Shape, index: int) -> MappingRule:
    """The matrix of one expert, [outputs, inputs], from the stack [experts, inputs, outputs]."""
    return MappingRule(
        (name,),
        (shape,),
        shard=lambda tensors, rank, size: tensors[0][index].t().contiguous(),
        shares=lambda parameter, rank, size: [Share(index, index + 1, parameter.t()[None])],
        of_expert=True,
        own_shape=(shape[2], shape[1]),
    )


def qkv(names: tuple[str, str, str], kv_heads: int, queries: int, tail: Shape) -> MappingRule:
    """megatron-core keeps each key/value head together with the query heads that read it.

    `queries`: rows of q_proj for each key/value head. `tail`: the shapes after the rows, with the
    rows of one head before it.
    """
    dim, rest = tail[0], tail[1:]

    def shard(tensors: Tensors, rank: int, size: int) -> torch.Tensor:
        blocks = _join([tensor.unflatten(0, (kv_heads, -1)) for tensor in tensors], axis=1)
        return blocks.flatten(0, 1).chunk(size)[rank]

    def shares(parameter: torch.Tensor, rank: int, size: int) -> Sequence[Share]:
        blocks = parameter.unflatten(0, (-1, queries + 2 * dim))
        parts = [x.flatten(0, 1) for x in blocks.split([queries, dim, dim], dim=1)]
        if size <= kv_heads:
            return [_rows(part, rank) for part in parts]
        # Queries in equal parts; a head of keys is sent by the first of the ranks that read it.
        own, keys, values = parts
        ranks_a_head = size // kv_heads
        head = [_cut(part, rank // ranks_a_head, dim) for part in (keys, values)]
        if rank % ranks_a_head:
            head = [Share(0, 0, one.tensor[:0]) for one in head]
        return [_cut(own, rank, len(own) // size), *head]

    lengths = (kv_heads * queries, kv_heads * dim, kv_heads * dim)
    shapes = tuple((one, *rest) for one in lengths)
    return MappingRule(names, shapes, shard, shares, most_ranks=kv_heads)


def _joined(tensors: Tensors, axis: int) -> torch.Tensor:
    """A view where there is one alone."""
    return tensors[0] if len(tensors) == 1 else _join(tensors, axis)


def _join(tensors: Tensors, axis: int = 0) -> torch.Tensor:
    import torch

    return torch.cat([*tensors], dim=axis)


def _cut(tensor: torch.Tensor, place: int, length: int) -> Share:
    start, stop = place * length, (place + 1) * length
    return Share(start, stop, tensor[start:stop])


def _rows(tensor: torch.Tensor, rank: int) -> Share:
    """Rows of a tensor of which every rank has equally many rows."""
    return Share(rank * len(tensor), (rank + 1) * len(tensor), tensor)
