"""The performance tables of the guides, a row each, and the run of ours that stands against it.

Sources: MindSpeed-RL, docs/zh/algorithms/grpo.md with its configs/ (April 2026); MindSpeed-MM, verl_plugin/README.md
with examples/verl_examples/ (August 2026). A die is what npu-smi numbers: an A3 card has two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Machine = Literal["A2", "A3"]
Settings = Mapping[str, Any]
"""Keys of ours with dots, and their values."""
GUIDES = {
    "mindspeed-rl": "MindSpeed-RL, docs/zh/algorithms/grpo.md",
    "verl": "MindSpeed-MM, verl_plugin/README.md",
}


@dataclass(frozen=True, slots=True)
class Published:
    """Example: ROWS["qwen25-7b-a3"].figure == 220"""

    by: Literal["mindspeed-rl", "verl"]
    """Whose formula the figure is of; GUIDES has where it stands."""
    model: str
    """Its folder under models/, and its key in models.CONFIGS."""
    machine: Machine
    dies: int
    """Of the published configuration; all of them train and generate in turns."""
    prompts: int
    answers: int
    """To a prompt."""
    prompt_tokens: int
    answer_tokens: int
    figure: float
    """Tokens a second and die."""
    settings: Settings
    """Of our run: where it differs from all others."""
    is_longest: bool = False
    """Nothing in the published configuration sets log_max_throughput, whose default takes the longest
    lengths of a step for all."""
    refused: str = ""
    """Why `trimaran plan` refuses it on dies of 64 GiB; empty where it does not."""


def _layout(tensor: int, data: int, replicas: int, rollout_tensor: int, **more: int) -> Settings:
    return {
        "trainer.tensor_parallel": tensor,
        "trainer.data_parallel": data,
        "trainer.sequence_parallel": tensor > 1,
        "trainer.distributed_optimizer": data * more.get("context_parallel", 1) > 1,
        "rollout.replicas": replicas,
        "rollout.tensor_parallel": rollout_tensor,
        **{f"trainer.{key}": value for key, value in more.items()},
    }


def _of(settings: Settings, updates: int, kl: float, rule: str, **keys: Any) -> Settings:
    return {
        **settings,
        "algorithm.updates_per_batch": updates,
        "algorithm.kl.coefficient": kl,
        "reward.rules": {rule: 1.0},
        **{key.replace("__", "."): value for key, value in keys.items()},
    }


def _both(on_a2: float, on_a3: float) -> tuple[tuple[Machine, float], ...]:
    """Figures of the same run."""
    return (("A2", on_a2), ("A3", on_a3))


SEVEN = _layout(2, 4, 8, 1)
EIGHT_DIES = _layout(4, 1, 2, 2)
THIRTY_TWO = _layout(8, 2, 8, 2)
THIRTY_TWO_VL = _layout(8, 1, 8, 2, pipeline_parallel=2)
EXPERTS = _layout(1, 4, 4, 4, context_parallel=4, expert_parallel=16)
TOO_LONG = "a sequence of 17,408 tokens takes more activations than 32 dies leave"

ROWS: Mapping[str, Published] = {
    "qwen25-7b-a3": Published(
        *("mindspeed-rl", "Qwen2.5-7B", "A3", 16, 32, 8, 2048, 2048, 220.0),
        _of(SEVEN, 1, 0.001, "math_17k_acc", trainer__micro_batch_tokens=8192),
    ),
    "qwen25-32b-a3": Published(
        *("mindspeed-rl", "Qwen2.5-32B", "A3", 16, 64, 16, 1024, 2048, 220.0),
        _of(THIRTY_TWO, 1, 0.001, "math_verify_reward", trainer__micro_batch_tokens=4096),
    ),
    "qwen25-32b-a2": Published(
        *("mindspeed-rl", "Qwen2.5-32B", "A2", 16, 64, 16, 1024, 1024, 100.0),
        _of(THIRTY_TWO, 1, 0.001, "math_verify_reward", trainer__micro_batch_tokens=4096),
    ),
    "qwen3-8b-a3": Published(
        *("mindspeed-rl", "Qwen3-8B", "A3", 16, 32, 8, 2048, 8192, 252.0),
        _of(
            *(_layout(2, 2, 8, 1, context_parallel=2), 1, 0.01, "base_acc"),
            trainer__micro_batch_tokens=10240,
        ),
        is_longest=True,
    ),
    "deepseek-r1-671b-a3": Published(
        *("mindspeed-rl", "DeepSeek-R1", "A3", 256, 384, 32, 1024, 2048, 210.0),
        _of(
            *(_layout(4, 8, 8, 32, pipeline_parallel=8), 1, 0.2, "math_verify_reward"),
            trainer__pipeline_layers=[8, 8, 8, 8, 8, 7, 7, 7],
            trainer__expert_parallel=32,
            trainer__micro_batch_tokens=4096,
            trainer__offload=["optimizer"],
        ),
        is_longest=True,
    ),
    "qwen25vl-7b-a2": Published(
        *("verl", "Qwen2.5-VL-7B-Instruct", "A2", 8, 512, 5, 1024, 2048, 142.42),
        _of(EIGHT_DIES, 32, 0.01, "geo3k", trainer__micro_batch_tokens=6144),
    ),
    "qwen25vl-32b-a2": Published(
        *("verl", "Qwen2.5-VL-32B-Instruct", "A2", 16, 256, 5, 1024, 2048, 88.32),
        _of(THIRTY_TWO_VL, 8, 0.01, "geo3k", trainer__micro_batch_tokens=3200),
    ),
    **{
        f"qwen3vl-8b-{machine.lower()}": Published(
            *("verl", "Qwen3-VL-8B-Instruct", machine, 8, 512, 5, 1024, 2048, figure),
            _of(EIGHT_DIES, 16, 0.01, "geo3k", trainer__micro_batch_tokens=6144),
        )
        for machine, figure in _both(429.0, 364.0)
    },
    **{
        f"qwen3vl-30b-{machine.lower()}": Published(
            *("verl", "Qwen3-VL-30B-A3B-Instruct", machine, 16, 64, 5, 1024, 2048, figure),
            _of(EXPERTS, 2, 0.01, "geo3k", trainer__micro_batch_tokens=4096),
        )
        for machine, figure in _both(21.76, 19.1)
    },
    **{
        f"qwen3vl-30b-16k-{machine.lower()}": Published(
            *("verl", "Qwen3-VL-30B-A3B-Instruct", machine, 16, 64, 5, 16384, 1024, figure),
            _of(EXPERTS, 4, 0.01, "geo3k", trainer__micro_batch_tokens=17408),
            refused=TOO_LONG,
        )
        for machine, figure in _both(275.0, 267.0)
    },
}
"""MindSpeed-MM's two rows with data that are not public are left out."""
