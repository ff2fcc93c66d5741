"""Prompts whose keys and values serve all completions, against whole sequences with copies of them.

The core attention alone, and forward and backward passes of a few layers of SmolLM2-135M's shape
with random weights. "Copies" is the other layout that the attention has, which it takes here for
all groups. Both in one process, interleaved; seconds are of the CPU, not of the clock.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.results_file import Row
from services.trainer.step.packing import GroupLengths

HEADS, KEY_HEADS, CHANNELS = 9, 3, 64
LAYERS, VOCABULARY = 2, 128
SHAPE = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": LAYERS} | {
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "max_position_embeddings": 8192,
}
SIDES = ("copies", "ours")
DTYPES = ("bfloat16", "float32")
PEAK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Work:
    """Groups of 8 completions. Example: Work(38, 24, 8)"""

    prompt: int
    completion: int
    num_groups: int = 1

    @property
    def groups(self) -> list[GroupLengths]:
        return [GroupLengths(self.prompt, (self.completion,) * 8)] * self.num_groups

    def __str__(self) -> str:
        return f"{self.prompt}_{self.completion}"


WORKS = (Work(38, 24, 8), Work(128, 128), Work(512, 128), Work(2048, 128), Work(4096, 128))


def measure_attention(work: Path, rounds: int) -> tuple[list[Row], str]:
    rows: list[Row] = []
    for dtype in DTYPES:
        policy = _make_policy(work / dtype, dtype)
        for one in WORKS:
            name = f"{one}_{dtype}"
            few = rounds if one.prompt < 2048 else min(rounds, 3)
            alone = _medians({side: _attention(one, dtype, side) for side in SIDES}, few)
            layers = _medians({side: _layers(policy, one, side) for side in SIDES}, few)
            rows += _compare(f"attention_{name}", alone) + _compare(f"layers_{name}", layers)
            if dtype == "bfloat16":
                rows += [
                    Row(f"attention_peak_{side}_{name}", _peak(one, side), "MiB", None, False)
                    for side in SIDES
                ]
        _leave()
    return rows, (
        f"medians of {rounds} interleaved rounds (3 from prompts of 2,048 tokens on), groups of 8"
        f" completions, prompt_completion tokens; {WORKS[0].num_groups} groups in the first,"
        f" one in the others; forward and backward, {LAYERS} layers, one thread, CPU seconds;"
        " peak: growth of a new process's memory by one pass of the attention"
    )


def _compare(name: str, seconds: dict[str, float]) -> list[Row]:
    print(f"{name}: {seconds}", flush=True)
    return [
        Row(f"{name}_speedup", seconds["copies"] / seconds["ours"], "ratio", 1.0, True),
        *(Row(f"{name}_{side}", one, "s", None, False) for side, one in seconds.items()),
    ]


def _medians(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side, run in sides.items():
            start = time.thread_time()
            run()
            if number:  # the first warms up
                seconds[side].append(time.thread_time() - start)
    return {side: statistics.median(one) for side, one in seconds.items()}


def _attention(work: Work, dtype: str, side: str) -> Callable[[], object]:
    from services.trainer.megatron.cpu import let_megatron_run_on_cpu

    let_megatron_run_on_cpu()
    import torch

    from services.trainer.megatron.attention.attention import attend, build_layout

    kind = getattr(torch, dtype)
    num_tokens = sum(group.num_tokens for group in work.groups)
    heads = (HEADS, KEY_HEADS, KEY_HEADS)
    query, key, value = (
        torch.randn(num_tokens, one, CHANNELS, dtype=kind).requires_grad_() for one in heads
    )
    upstream = torch.randn(num_tokens, HEADS, CHANNELS, dtype=kind)
    with _side(side):
        layout = build_layout(work.groups, torch.ones(CHANNELS // 2), kind, KEY_HEADS)

    def run() -> None:
        torch.autograd.grad(attend(query, key, value, layout), (query, key, value), upstream)

    return run


def _layers(policy: Any, work: Work, side: str) -> Callable[[], object]:
    """The head is small, so that it counts for nothing."""
    import torch

    from services.trainer.step.batch import PackedBatch

    groups = tuple(work.groups)
    num_tokens = sum(group.num_tokens for group in groups)
    sources, none = torch.arange(num_tokens), torch.empty(0)
    tokens = torch.randint(VOCABULARY, (num_tokens,))
    packed = PackedBatch(tokens, groups, sources, tokens, none, none, 0)

    def run() -> None:
        with _side(side):
            policy.forward_backward([packed], lambda _, outputs: outputs.logprobs_M.sum())

    return run


def _side(side: str) -> contextlib.AbstractContextManager[object]:
    if side == "ours":
        return contextlib.nullcontext()
    return mock.patch("services.trainer.megatron.attention.attention.PAIR_COST_CPU", float("inf"))


def _make_policy(folder: Path, dtype: str) -> Any:
    import torch
    import transformers

    from services.trainer.backend import build_policy
    from trimaran.config import parse_config
    from trimaran.host.device import pick

    torch.manual_seed(0)
    shape: dict[str, Any] = {**SHAPE, "vocab_size": VOCABULARY}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")  # a model folder has one
    config = parse_config(
        {
            "model": {"path": str(folder), "dtype": dtype},
            "data": {"train": "unused"},
            "reward": {"rules": {"last_integer": 1.0}},
            "trainer": {"device": "cpu"},
        }
    )
    return build_policy(config, None, pick("cpu"), 0)


def _leave() -> None:
    """The next type begins with empty counters."""
    import torch
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def _peak(work: Work, side: str) -> float:
    """MiB by which one forward and backward pass lets a new process grow."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(_growth, (work, side)).get(PEAK_SECONDS)


def _growth(work: Work, side: str) -> float:
    run = _attention(work, "bfloat16", side)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins again
    run()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    """KiB"""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
