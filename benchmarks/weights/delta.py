"""How much of the model a GRPO step changes, and the bytes of the delta, by learning rate.

The trainer's own policy (Megatron, fp32 main weights, fused AdamW, bf16 model) takes its own steps
on groups that the initial policy sampled and the real rule scored: 20 steps a learning rate, the
same batches each time, from the same weights with fresh moments. Off-policy by up to 20 steps, as
nothing is sampled again. The trainer's own snapshot compares each version with the one before.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.results_file import Row
from benchmarks.weights.versions import run_config
from trimaran.types import Ranges, TrainingBatch

if TYPE_CHECKING:
    from weights.sending.snapshot import Snapshot

LEARNING_RATES = (1e-6, 1e-5, 2e-5)
STEPS, GROUPS_PER_STEP = 20, 4
THREADS = 2
GOAL_RATE, GOAL = 1e-6, 0.05


def measure_delta(model: Path, work: Path) -> tuple[list[Row], str]:
    from benchmarks.weights.samples import GROUP_SIZE, MAX_TOKENS, make_batches
    from services.trainer.backend import build_policy
    from trimaran.host.device import pick

    batches = make_batches(model, STEPS, GROUPS_PER_STEP)
    config = run_config(
        model, run={"groups_per_step": GROUPS_PER_STEP}, trainer={"threads": THREADS}
    )
    policy = build_policy(config, None, pick("cpu"), 0)
    initial = {name: tensor.clone() for name, tensor in policy.state().items()}
    rows: list[Row] = []
    for rate in LEARNING_RATES:
        policy.load_state(initial, 0)
        rows += _measure(policy, model, batches, rate)
    return rows, (
        f"{STEPS} steps of {GROUPS_PER_STEP} x {GROUP_SIZE} samples of up to {MAX_TOKENS} tokens"
        " from the initial policy on one-digit addition; AdamW from fresh moments, so that the"
        " first step changes most; shares of elements and bytes of each version against the last"
    )


def _measure(policy: Any, model: Path, batches: list[TrainingBatch], rate: float) -> list[Row]:
    from services.trainer.step.learner import train_step

    config = run_config(
        model,
        run={"groups_per_step": GROUPS_PER_STEP},
        trainer={"threads": THREADS, "learning_rate": rate, "device": "cpu"},
    )
    snapshot = _snapshot(policy)
    shares, ratios, seconds = [], [], []
    for batch in batches:
        before = snapshot.buffer.clone()
        metrics = train_step(policy, batch, config).metrics
        begin = time.perf_counter()
        snapshot = _snapshot(policy, snapshot)
        seconds.append(time.perf_counter() - begin)
        shares.append(_changed_share(before, snapshot))
        assert snapshot.delta is not None
        ratios.append(snapshot.delta.describe(_all(policy)).num_bytes / snapshot.layout.num_bytes)
        print(
            f"{rate:g} step {batch.step}: {shares[-1]:.4%} of elements, {ratios[-1]:.4%} of bytes,"
            f" gradient norm {metrics['trainer/grad_norm']:.2f}",
            flush=True,
        )
    goal = GOAL if rate == GOAL_RATE else None
    return [
        Row(f"delta_bytes_mean_at_{rate:g}", statistics.fmean(ratios), "of full", goal, False),
        Row(f"delta_bytes_worst_at_{rate:g}", max(ratios), "of full", goal, False),
        Row(f"delta_elements_mean_at_{rate:g}", statistics.fmean(shares), "share", None, False),
        Row(f"delta_elements_worst_at_{rate:g}", max(shares), "share", None, False),
        Row(f"delta_snapshot_seconds_at_{rate:g}", statistics.median(seconds), "s", None, False),
    ]


def _snapshot(policy: Any, reuse: Snapshot | None = None) -> Snapshot:
    from weights.sending.snapshot import take_snapshot

    parts, blocks = policy.parts(), _all(policy)
    return take_snapshot(policy.tensors, parts, blocks, reuse=reuse, keep_delta=reuse is not None)


def _all(policy: Any) -> Ranges:
    return ((0, sum(tensor.num_blocks for tensor in policy.tensors)),)


def _changed_share(before: Any, snapshot: Snapshot) -> float:
    """Of the model's elements, two bytes each; the buffer's padding never changes."""
    import torch

    changed = (before.view(torch.int16) != snapshot.buffer.view(torch.int16)).sum().item()
    elements = sum(piece.end - piece.start for piece in snapshot.layout.pieces) // 2
    return changed / elements
