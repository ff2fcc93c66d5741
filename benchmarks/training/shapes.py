"""Our step against plain transformers', from separate sequences to long shared prompts."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.training.work import (
    MODEL,
    THREADS,
    count_tokens,
    interleave,
    make_batch,
    make_config,
    our_step,
    plain_step,
)

GROUP_SIZE = 8
SHARED_GOAL = 0.8
"""Of what sharing spares: (tokens with a copy of the prompt each) / (tokens with one a group)."""
CASES = {
    # prompt, completion, groups
    "separate": (1, 127, 4),
    "1_to_1": (128, 128, 4),
    "4_to_1": (512, 128, 2),
    "16_to_1": (2048, 128, 1),
}
ROUNDS, QUICK_ROUNDS = 5, 1


def measure_shapes(work: Path, quick: bool) -> tuple[list[Row], str]:
    import torch

    torch.set_num_threads(THREADS)
    matrix_rate = _matrix_rate()
    rows = [Row("matrix_rate", matrix_rate / 1e9, "GFLOP/s", None, True)]
    for name, (prompt, completion, groups) in CASES.items():
        batch = make_batch(prompt, [[completion] * GROUP_SIZE] * groups)
        config = make_config(groups)
        sides = {"ours": our_step(config, batch), "plain": plain_step(MODEL, batch, 4096)}
        torch.set_num_threads(THREADS)
        seconds = interleave(sides, QUICK_ROUNDS if quick else ROUNDS)
        copied, shared = count_tokens(batch)
        spared = copied / shared
        ratio = seconds["plain"] / seconds["ours"]
        goal = 1.0 if name == "separate" else SHARED_GOAL * spared
        rate = _flop(shared, groups * GROUP_SIZE * completion) / seconds["ours"]
        rows += [
            Row(f"{name}_seconds_of_plain_over_ours", ratio, "ratio", goal, True),
            Row(f"{name}_tokens_spared_by_sharing", spared, "ratio", None, True),
            Row(f"{name}_seconds", seconds["ours"], "s", None, False),
            Row(f"{name}_share_of_matrix_rate", rate / matrix_rate, "share", None, True),
        ]
        del sides
        torch.distributed.destroy_process_group()
        _forget_ranks()
    return rows, (
        f"SmolLM2-135M, groups of {GROUP_SIZE}, {THREADS} threads, bf16; forward, backward and AdamW;"
        f" medians of {QUICK_ROUNDS if quick else ROUNDS} interleaved rounds"
    )


def _flop(packed_tokens: int, trained_tokens: int) -> float:
    """Of forward and backward through all matrices; attention is not counted."""
    from trimaran.model.folder import read_model_folder

    facts = read_model_folder(MODEL)
    layers = 2 * facts.used_parameters(0) * facts.num_layers * packed_tokens
    return 3 * (layers + 2 * facts.hidden_size * facts.vocab_size * trained_tokens)


def _matrix_rate() -> float:
    """FLOP/s of bf16 products of the model's shapes, in a quiet loop."""
    import torch

    from trimaran.model.folder import read_model_folder

    facts = read_model_folder(MODEL)
    left = torch.randn(2048, facts.hidden_size, dtype=torch.bfloat16)
    right = torch.randn(facts.intermediate_size, facts.hidden_size, dtype=torch.bfloat16)
    seconds = interleave({"product": lambda: [left @ right.t() for _ in range(20)]}, 5)["product"]
    return 20 * 2 * left.numel() * right.shape[0] / seconds


def _forget_ranks() -> None:
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
