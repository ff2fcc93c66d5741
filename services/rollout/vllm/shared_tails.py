"""Completions of one prompt copy its last block of keys and values from the one that computed it.

vLLM's prefix cache shares full blocks alone. On a host a block has 32 tokens, so that each completion of a
group would compute up to 31 tokens of the prompt again: a fifth of the time of short answers. Here the first
computes the prompt, the others wait for one step, and then compute its last token alone.

This is a KV connector, which is what vLLM calls whoever has keys and values that its own cache has not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import RequestStatus

TokenIds = tuple[int, ...]


@dataclass
class BlockCopies(KVConnectorMetadata):
    """Blocks to copy before a step, and where to."""

    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


class SharedTails(KVConnectorBase_V1, SupportsHMA):
    """One in vLLM's scheduler, one in each worker. All that the scheduler's one remembers is of requests that run:
    a preempted or finished request is no longer copied from, and none is after new weights."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        groups = kv_cache_config.kv_cache_groups
        self._is_plain = len(groups) == 1 and type(groups[0].kv_cache_spec) is FullAttentionSpec
        """Else a block is not all that there is of its tokens."""
        self._block_tokens = groups[0].kv_cache_spec.block_size if groups else 0
        self._firsts: dict[TokenIds, Any] = {}
        """vLLM's requests, by their prompts."""
        self._has_waited: set[str] = set()
        self._copies = BlockCopies()
        self._caches: list[torch.Tensor] = []

    # In the scheduler

    @property
    def requires_kv_delivery(self) -> bool:
        """No other engine waits for what a request leaves."""
        return False

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        missing = request.num_prompt_tokens - 1 - num_computed_tokens
        first = self._first_of(request)
        if first is None or missing <= 0:
            return 0, False
        if first.num_computed_tokens >= first.num_prompt_tokens:
            return missing, False
        self._has_waited.add(request.request_id)
        return None, False  # to be asked again in the next step

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        first = self._first_of(request)
        # Where a first one ended with its first token, the others wait for no further one.
        if first is None and self._is_new(request) and request.request_id not in self._has_waited:
            self._firsts[_prompt(request)] = request
        if first is not None and num_external_tokens:
            assert self._kv_cache_manager is not None
            (sources,) = self._kv_cache_manager.get_block_ids(first.request_id)
            (targets,) = blocks.get_block_ids()
            last = request.num_prompt_tokens - 2
            start = (last + 1 - num_external_tokens) // self._block_tokens
            here = slice(start, last // self._block_tokens + 1)
            self._copies.sources += sources[here]
            self._copies.targets += targets[here]

    def build_connector_meta(self, scheduler_output: Any) -> BlockCopies:
        copies, self._copies = self._copies, BlockCopies()
        return copies

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        self._has_waited.discard(request.request_id)
        if self._firsts.get(_prompt(request)) is request:
            del self._firsts[_prompt(request)]
        return False, None

    request_finished_all_groups = request_finished

    def reset_cache(self) -> bool:
        """For new weights."""
        self._firsts.clear()
        return True

    def _first_of(self, request: Any) -> Any:
        """The other one that computes its prompt, or has; None where none does."""
        first = self._firsts.get(_prompt(request)) if self._is_new(request) else None
        return first if first and first.status == RequestStatus.RUNNING else None

    def _is_new(self, request: Any) -> bool:
        """Without tokens of its own, or images, which token ids do not tell apart."""
        is_prompt = request.num_tokens == request.num_prompt_tokens
        return self._is_plain and is_prompt and not request.mm_features

    # In a worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._caches = [*kv_caches.values()]

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        copies = self._get_connector_metadata()
        assert isinstance(copies, BlockCopies)
        if copies.sources:
            sources, targets = torch.tensor([copies.sources, copies.targets])
            for cache in self._caches:
                cache[targets] = cache[sources]

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A copy is made when its call returns."""

    def save_kv_layer(self, *_: Any, **__: Any) -> None:
        """It lies in vLLM's cache."""

    def wait_for_save(self) -> None:
        """There is nothing to wait for."""


def _prompt(request: Any) -> TokenIds:
    return tuple(request.prompt_token_ids or ())
