"""Who computes a prompt, who waits for it, and which blocks are copied. tests/rollout/test_service.py looks at the
log-probabilities that come of it."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.request import RequestStatus

from services.rollout.vllm.shared_tails import BlockCopies, SharedTails

BLOCK = 32
PROMPT = tuple(range(70))
SIZES: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}


@dataclass
class Waiting:
    """What the connector reads of vLLM's Request."""

    request_id: str
    prompt_token_ids: tuple[int, ...] = PROMPT
    num_computed_tokens: int = 0
    status: RequestStatus = RequestStatus.WAITING
    mm_features: list[Any] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    num_tokens = num_prompt_tokens


class Blocks:
    """By request, as vLLM's cache manager has them."""

    block_pool = None

    def __init__(self) -> None:
        self.of: dict[str, list[int]] = {}

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return (self.of[request_id],)


def connector(*specs: Any) -> SharedTails:
    specs = specs or (FullAttentionSpec(block_size=BLOCK, **SIZES),)
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    config: Any = SimpleNamespace(kv_transfer_config=SimpleNamespace())
    cache: Any = SimpleNamespace(kv_cache_groups=groups)
    tails = SharedTails(config, KVConnectorRole.SCHEDULER, cache)
    manager: Any = Blocks()
    tails.bind_kv_cache_manager(manager)
    return tails


def schedule(tails: SharedTails, request: Waiting, cached: int, blocks: list[int]) -> bool:
    """As vLLM's scheduler does; whether the request is in the step."""
    found, is_later = tails.get_num_new_matched_tokens(request, cached)
    assert not is_later
    if found is None:
        return False
    request.status, request.num_computed_tokens = RequestStatus.RUNNING, cached + found
    manager: Any = tails._kv_cache_manager
    manager.of[request.request_id] = blocks
    tails.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: (blocks,)), found)
    return True


def compute(tails: SharedTails, *requests: Waiting) -> tuple[list[int], list[int]]:
    """The step's copies, and then the step."""
    copies = tails.build_connector_meta(None)
    for request in requests:
        request.num_computed_tokens = request.num_prompt_tokens
    return copies.sources, copies.targets


@pytest.fixture
def tails() -> SharedTails:
    return connector()


@pytest.fixture
def first(tails: SharedTails) -> Waiting:
    """It has computed its prompt."""
    request = Waiting("first")
    assert schedule(tails, request, 0, [7, 8, 9])
    assert compute(tails, request) == ([], [])
    return request


def test_the_others_wait_for_one_step_and_copy_the_last_block(tails: SharedTails) -> None:
    first, second, third = Waiting("first"), Waiting("second"), Waiting("third")
    assert schedule(tails, first, 0, [7, 8, 9])
    assert not schedule(tails, second, 64, [7, 8, 10])
    assert compute(tails, first) == ([], [])
    assert schedule(tails, second, 64, [7, 8, 10])
    assert schedule(tails, third, 64, [7, 8, 11])
    assert second.num_computed_tokens == 69
    assert compute(tails, second, third) == ([9, 9], [10, 11])
    assert compute(tails) == ([], [])


def test_blocks_that_vllm_no_longer_has_are_copied_too(tails: SharedTails, first: Waiting) -> None:
    assert schedule(tails, Waiting("second"), 32, [7, 20, 21])
    assert compute(tails) == ([8, 9], [20, 21])


@pytest.mark.parametrize(("length", "cached"), [(1, 0), (33, 32), (64, 32), (65, 64)])
def test_a_prompt_s_last_token_is_always_computed(
    tails: SharedTails, length: int, cached: int
) -> None:
    first, second = Waiting("first", PROMPT[:length]), Waiting("second", PROMPT[:length])
    schedule(tails, first, 0, [7, 8, 9])
    compute(tails, first)
    assert schedule(tails, second, cached, [7, 8, 9])
    assert second.num_computed_tokens == length - 1


def test_a_first_one_that_has_ended_is_not_copied_from_nor_waited_for_again(
    tails: SharedTails,
) -> None:
    first, second, third = Waiting("first"), Waiting("second"), Waiting("third")
    assert schedule(tails, first, 0, [7, 8, 9])
    assert not schedule(tails, second, 64, [])
    assert not schedule(tails, third, 64, [])
    compute(tails, first)
    first.status = RequestStatus.FINISHED_STOPPED
    assert tails.request_finished(first, ()) == (False, None)
    assert schedule(tails, second, 64, [7, 8, 10])
    assert schedule(tails, third, 64, [7, 8, 11])
    assert second.num_computed_tokens == 64
    assert compute(tails, second, third) == ([], [])


def test_a_prompt_that_takes_several_steps_is_waited_for(tails: SharedTails) -> None:
    first, second = Waiting("first"), Waiting("second")
    first_blocks = [7]
    assert schedule(tails, first, 0, first_blocks)
    assert not schedule(tails, second, 0, [])
    tails.build_connector_meta(None)
    first.num_computed_tokens = 32
    first_blocks += [8, 9]
    assert not schedule(tails, second, 32, [])
    assert compute(tails, first) == ([], [])
    assert schedule(tails, second, 64, [7, 8, 10])
    assert compute(tails, second) == ([9], [10])


def test_a_first_one_that_is_preempted_is_not_copied_from(
    tails: SharedTails, first: Waiting
) -> None:
    first.status, first.num_computed_tokens = RequestStatus.PREEMPTED, 0
    assert schedule(tails, Waiting("second"), 64, [7, 8, 10])
    assert compute(tails) == ([], [])


def test_after_new_weights_a_prompt_is_computed_again(tails: SharedTails, first: Waiting) -> None:
    assert tails.reset_cache()
    second = Waiting("second")
    assert schedule(tails, second, 0, [10, 11, 12])
    assert compute(tails, second) == ([], [])


def test_nothing_is_shared_of_images_and_other_kinds_of_cache(first: Waiting) -> None:
    pictured = [Waiting(str(number), mm_features=["image"]) for number in range(2)]
    tails = connector()
    assert all(schedule(tails, one, 0, [1, 2, 3]) for one in pictured)
    window = SlidingWindowSpec(block_size=BLOCK, sliding_window=64, **SIZES)
    for specs in ((window,), (FullAttentionSpec(block_size=BLOCK, **SIZES), window)):
        tails = connector(*specs)
        assert all(schedule(tails, Waiting(str(number)), 0, [1, 2, 3]) for number in range(2))


def test_a_worker_copies_whole_blocks_of_every_layer(tails: SharedTails) -> None:
    caches = {str(layer): torch.rand(5, 1, BLOCK, 128) for layer in range(2)}
    before = {name: cache.clone() for name, cache in caches.items()}
    tails.register_kv_caches(caches)
    tails.bind_connector_metadata(BlockCopies([1, 1], [3, 4]))
    tails.start_load_kv(None)
    for name, cache in caches.items():
        assert torch.equal(cache[3], before[name][1])
        assert torch.equal(cache[4], before[name][1])
        assert torch.equal(cache[:3], before[name][:3])
