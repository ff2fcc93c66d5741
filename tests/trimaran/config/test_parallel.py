"""Places of ranks, against megatron-core's own groups of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.config.parallel import ParallelLayout, RankPlace

SIZES = st.sampled_from([1, 2, 3, 4])


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    tensor, pipeline, data, context = (draw(SIZES) for _ in range(4))
    expert_tensor = draw(st.sampled_from(divisors(tensor)))
    expert = draw(st.sampled_from(divisors(tensor * context * data // expert_tensor)))
    return ParallelLayout(tensor, pipeline, data, context, expert, expert_tensor)


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def places(layout: ParallelLayout) -> list[RankPlace]:
    return [layout.place(rank) for rank in range(layout.num_ranks)]


def grouped(layout: ParallelLayout, key: Callable[[RankPlace], Hashable]) -> set[tuple[int, ...]]:
    """Ranks by what `key` says of their places."""
    found: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place in places(layout):
        found[key(place)].append(place.rank)
    return {tuple(ranks) for ranks in found.values()}


@given(layouts())
def test_groups_are_those_of_megatron(layout: ParallelLayout) -> None:
    generator = pytest.importorskip("megatron.core.parallel_state").RankGenerator
    tp, pp, dp = layout.tensor, layout.pipeline, layout.data
    cp, ep, etp, order = layout.context, layout.expert, layout.expert_tensor, "tp-cp-ep-dp-pp"
    dense = generator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
    expert = generator(tp=etp, ep=ep, dp=tp * dp * cp // ep // etp, pp=pp, cp=1, order=order)

    def ranks(source: object, token: str) -> set[tuple[int, ...]]:
        return {tuple(sorted(group)) for group in source.get_ranks(token)}  # type: ignore[attr-defined]

    assert grouped(layout, lambda p: (p.context, p.data, p.pipeline)) == ranks(dense, "tp")
    assert grouped(layout, lambda p: (p.tensor, p.context, p.data)) == ranks(dense, "pp")
    assert grouped(layout, lambda p: (p.tensor, p.context, p.pipeline)) == ranks(dense, "dp")
    assert grouped(layout, lambda p: (p.tensor, p.data, p.pipeline)) == ranks(dense, "cp")
    parts = ranks(expert, "dp")
    assert grouped(layout, lambda p: (p.expert, p.expert_tensor, p.pipeline)) == parts
    copies = {rank: n for part in parts for n, rank in enumerate(sorted(part))}
    slices = grouped(layout, lambda p: (copies[p.rank], p.expert, p.pipeline))
    assert slices == ranks(expert, "tp")
    same = grouped(layout, lambda p: (p.tensor, p.expert, p.expert_tensor, p.pipeline))
    assert grouped(layout, lambda p: p.shard) == same


@given(layouts())
def test_each_shard_has_one_sender_and_rank_0_has_the_first(layout: ParallelLayout) -> None:
    assert [place.shard for place in layout.senders] == list(range(layout.num_shards))
    assert layout.senders[0].rank == 0
    dense = [p for p in places(layout) if p.sends_dense]
    assert len({(p.tensor, p.pipeline) for p in dense}) == len(dense)
    assert len(dense) == layout.tensor * layout.pipeline
    assert all(p.sends and p.data == p.context == 0 for p in dense)
    experts = [p for p in places(layout) if p.sends_experts]
    assert len({(p.expert, p.expert_tensor, p.pipeline) for p in experts}) == len(experts)
    assert len(experts) == layout.expert_parts * layout.pipeline
    assert all(p.sends for p in experts)


def test_a_layout_written_out() -> None:
    layout = ParallelLayout(tensor=2, pipeline=2, data=2)
    found = [(p.tensor, p.data, p.pipeline) for p in places(layout)]
    assert found == [
        *((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)),
        *((0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1)),
    ]
    assert [place.rank for place in layout.senders] == [0, 1, 4, 5]
    assert [layout.place(rank).shard for rank in (2, 3, 6, 7)] == [0, 1, 2, 3]


def test_a_rank_that_there_is_not() -> None:
    with pytest.raises(IndexError, match="rank 4 of 4"):
        ParallelLayout(tensor=2, data=2).place(4)


def test_layers_go_round_the_pipeline() -> None:
    assert ParallelLayout().place(0).layers(4) == (0, 1, 2, 3)
    first, second = (ParallelLayout(pipeline=2).place(rank) for rank in (0, 1))
    assert (first.layers(8, 2), second.layers(8, 2)) == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_stages_have_the_layers_that_they_are_given() -> None:
    layout = ParallelLayout(pipeline=3, data=2, layers=(0, 3, 1))
    assert layout.stages(4) == (range(0), range(3), range(3, 4))
    found = [layout.place(rank).layers(4) for rank in range(6)]
    assert found == [(), (), (0, 1, 2), (0, 1, 2), (3,), (3,)]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_stages_are_those_of_megatron(sizes: list[int]) -> None:
    layout = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    theirs = layout.PipelineParallelLayerLayout([["decoder"] * one for one in sizes], len(sizes))
    ours = ParallelLayout(pipeline=len(sizes), layers=tuple(sizes)).stages(sum(sizes))
    for stage, layers in enumerate(ours):
        assert theirs.get_layer_id_list(pp_rank=stage) == list(layers)
