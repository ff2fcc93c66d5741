"""Several ranks in bfloat16 against plain transformers in bfloat16: log-probabilities and gradients.

The bound. Both round after every operation, each time by at most 2^-9 of the number, and in another order.
What rounding does to a result is therefore a random error of the same size in both, and the two differ by
the root of the sum of their squares. That size is measured: it is what plain transformers in bfloat16 differ
by from the same weights in float32, e. A layer rounds about 10 times what the next one reads (norm, queries,
attention, projection, sum, norm, first product, activation, second product, sum); two tensor-parallel ranks
round their parts of the two projections besides, 12 times. So ours differs from float32 by up to
e x sqrt(12 / 10), and from the plain model by e x sqrt(1 + 12 / 10) = 1.5 e. The tests allow 2 e, as e is
the mean of few tokens: 2.5 hundredths of the gradient's norm in these models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.models import TIED
from tests.trainer.processes import ANSWER_SECONDS, running_ranks
from tests.trainer.reference import loss_of, sequence_logprobs, with_rollout_logprobs
from tests.trainer.saved_moments import first_moments
from tests.trainer.test_parity import SEQUENCE, SPLIT, name_of
from trimaran.config import RunConfig
from trimaran.types import Score, TrainingBatch

pytestmark = pytest.mark.e2e
ALLOWED = 2.0
"""Times what plain transformers in bfloat16 differ by from float32."""
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"tensor_parallel": 2} | SEQUENCE),
    ("qwen2", {"pipeline_parallel": 2, "data_parallel": 2}),
    ("qwen2", {"tensor_parallel": 2}),
    ("llama", {"pipeline_parallel": 2}),
    ("qwen3", {"data_parallel": 2} | SPLIT),
    ("llama", {"context_parallel": 2}),
]


@pytest.mark.parametrize(("family", "sizes"), LAYOUTS, ids=name_of)
async def test_logprobs_and_gradients_in_bfloat16_are_as_near_as_rounding_allows(
    family: str,
    sizes: dict[str, Any],
    make_config: MakeConfig,
    model_folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    config = make_config(
        family,
        model={"dtype": "bfloat16"},
        trainer={**sizes, "micro_batch_tokens": 40, "clip_grad": 1e6},
        # Weights of 1, so that the gradient does not depend on whose log-probabilities the batch has.
        algorithm={"correction": {"weights": "none"}},
    )
    folder = model_folders[family]
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    exact: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float()
    batch = with_rollout_logprobs(plain, random_batch(1, num_groups=4), 0.7)

    async with running_ranks(config, tmp_path / "run") as client:
        answer = await client.train(batch)
        await client.save_checkpoint(1, ANSWER_SECONDS)
    between = answer.metrics["trainer/computed/logprob_diff/mean"]
    rounding = mean_difference(exact, batch)
    print(f"log-probabilities: {between:.2e} between, {rounding:.2e} of plain from float32")
    assert 0 < between < ALLOWED * rounding
    ours = saved_gradients(tmp_path / "run", config)
    of_plain, of_exact = (gradients_of(one, batch, config) for one in (plain, exact))
    between, rounding = distance(ours, of_plain), distance(of_plain, of_exact)
    print(f"gradients: {between:.2e} between, {rounding:.2e} of plain from float32")
    assert ours.keys() == of_plain.keys() - ({"lm_head.weight"} if family in TIED else set())
    assert 0 < between < ALLOWED * rounding


@torch.no_grad()
def mean_difference(model: torch.nn.Module, batch: TrainingBatch) -> float:
    """Of the batch's log-probabilities from those of `model`, over the tokens that train: those of
    groups with a signal."""
    found: list[torch.Tensor] = []
    for scored in batch.groups:
        if len({one.reward for one in scored.verdicts_G if isinstance(one, Score)}) == 1:
            continue
        for one, verdict in zip(scored.group.completions_G, scored.verdicts_G, strict=True):
            if isinstance(verdict, Score):
                wanted = sequence_logprobs(model, scored.group.prompt_token_ids, one, 0.7)
                found.append((wanted - torch.tensor(one.logprobs_S)).abs())
    return torch.cat(found).mean().item()


def gradients_of(
    model: torch.nn.Module, batch: TrainingBatch, config: RunConfig
) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss_of(model, with_rollout_logprobs(model, batch, 0.7), config).backward()
    return {
        name: one.grad.float() for name, one in model.named_parameters() if one.grad is not None
    }


def saved_gradients(run: Path, config: RunConfig) -> dict[str, torch.Tensor]:
    """After one update AdamW's first moment is (1 - beta1) of the gradient, as it was not clipped."""
    return {name: one / (1 - config.trainer.beta1) for name, one in first_moments(run).items()}


def distance(some: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> float:
    """Of all elements, relative to the norm of `others`."""
    names = some.keys() & others.keys()
    square = sum((some[name] - others[name]).square().sum() for name in names)
    norm = sum(others[name].square().sum() for name in names)
    return float((square / norm) ** 0.5)
