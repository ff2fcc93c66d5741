"""Frozen parameters: no gradient, no moments, no change; the others train as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.parameters.frozen import frozen_parameters
from services.trainer.megatron.parameters.mapping import model_rules
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.processes import ANSWER_SECONDS, running_ranks
from tests.trainer.test_policy import add_up, make_policy, whole_batch
from trimaran.errors import InputError
from trimaran.model.freezing import is_frozen

MANY = ["model.embed_tokens.weight", "*.self_attn.[qkv]_proj.*", "model.layers.1.mlp.*"]


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("family", "freeze"),
    [("llama", MANY), ("qwen2", ["model.embed_tokens.weight"]), ("qwen3_moe", ["*.mlp.gate.*"])],
)
def test_others_have_the_gradient_that_they_had_and_frozen_ones_have_none(
    family: str, freeze: list[str], recompute: bool, make_config: MakeConfig
) -> None:
    def gradients(freeze: list[str]) -> dict[str, torch.Tensor]:
        policy = make_policy(
            make_config(family, trainer={"freeze": freeze, "recompute": recompute})
        )
        policy.zero_gradients()
        policy.forward_backward([whole_batch()], add_up)
        weights: Any = policy._stages[0].named_weights()
        return {name: one.main_grad.clone() for name, one in weights if hasattr(one, "main_grad")}

    everything, trained = gradients([]), gradients(freeze)
    assert 0 < len(trained) < len(everything)
    for name, gradient in trained.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, everything[name], msg=name)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_moves_the_others_alone_and_the_state_has_them_alone(
    dtype: str, make_config: MakeConfig
) -> None:
    policy = make_policy(make_config("llama", model={"dtype": dtype}, trainer={"freeze": MANY}))
    before = {name: tensor.clone() for name, tensor in policy.export()}
    policy.zero_gradients()
    policy.forward_backward([whole_batch()], add_up)
    policy.sum_gradients()
    policy.update(1e-2)
    for name, tensor in policy.export():
        assert torch.equal(tensor, before[name]) == is_frozen(name, MANY), name
    names = {name.partition(".")[2] for name in policy.state()}
    frozen = frozen_parameters(policy._rules, MANY)
    assert names == policy._rules.keys() - frozen


@pytest.mark.parametrize(
    ("family", "freeze", "words"),
    [
        ("llama", ["*.gate.weight"], r"trainer\.freeze: '\*\.gate\.weight' matches no tensor"),
        ("llama", ["*.k_proj.weight"], "is one parameter with model.layers.0.self_attn.q_proj"),
        ("llama", ["*"], "matches every tensor of the model, so nothing would train"),
        ("qwen2", ["*[qkv]_proj.weight"], "layers.0.self_attention.linear_qkv and not its bias"),
    ],
)
def test_what_cannot_be_frozen_is_refused(
    family: str, freeze: list[str], words: str, model_folders: dict[str, Path]
) -> None:
    rules = model_rules(read_architecture(model_folders[family]))
    with pytest.raises(InputError, match=words):
        frozen_parameters(rules, freeze)


FIRST_STAGE = ["model.embed_tokens.weight", "model.layers.0.*"]
BF16 = {"optimizer": "adamw_bf16"}
SPLIT = {"distributed_optimizer": True}


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("family", "sizes", "tolerance"),
    [
        ("qwen2", {"pipeline_parallel": 2, "freeze": FIRST_STAGE}, 2e-4),
        (
            "qwen2",
            {"pipeline_parallel": 2, "data_parallel": 2, "freeze": FIRST_STAGE} | SPLIT,
            2e-4,
        ),
        ("llama", {"tensor_parallel": 2, "sequence_parallel": True, "freeze": MANY}, 2e-4),
        ("qwen3", {"tensor_parallel": 2, "data_parallel": 2, "freeze": MANY} | BF16, 0.03),
    ],
)
async def test_ranks_together_train_what_one_trains(
    family: str, sizes: dict[str, Any], tolerance: float, make_config: MakeConfig, tmp_path: Path
) -> None:
    """Also where a rank has nothing that trains."""
    dtype = "bfloat16" if "optimizer" in sizes else "float32"

    async def train(name: str, trainer: dict[str, Any]) -> list[list[float]]:
        trainer = {**trainer, "micro_batch_tokens": 40}
        config = make_config(family, trainer=trainer, model={"dtype": dtype})
        async with running_ranks(config, tmp_path / name) as client:
            answers = [await client.train(random_batch(step)) for step in (1, 2, 3)]
            await client.save_checkpoint(3, ANSWER_SECONDS)
        keys = ("trainer/loss", "trainer/grad_norm")
        return [[answer.metrics[key] for key in keys] for answer in answers]

    alone = {key: sizes[key] for key in ("freeze", "optimizer") if key in sizes}
    one, several = await train("one", alone), await train("several", sizes)
    assert several == [pytest.approx(row, rel=tolerance, abs=tolerance) for row in one]
