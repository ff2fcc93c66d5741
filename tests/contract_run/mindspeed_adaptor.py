"""That MindSpeed's adaptor is at work in the trainer's tests, and what it does that we must know.

    python -m pytest tests/contract_run/mindspeed_adaptor.py

Run by the part `mindspeed`, whose processes are set up by `mindspeed.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import services.trainer.megatron  # noqa: F401  brings the adaptor

pytestmark = pytest.mark.usefixtures("rank")


@pytest.fixture(scope="module")
def rank() -> Any:
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_megatrons_optimizer_is_mindspeeds(record_property: Callable[[str, Any], None]) -> None:
    from megatron.core import optimizer
    from mindspeed.patch_utils import (  # type: ignore[import-not-found]
        MindSpeedPatchesManager,
    )

    record_property("optimizer", f"{optimizer.Adam.__module__}.{optimizer.Adam.__name__}")
    setup = Path(os.environ["MINDSPEED_SOURCE"], "setup.py").read_text("utf-8")
    (version,) = re.findall(r"^__version__ = '(.+)'", setup, re.MULTILINE)
    record_property("mindspeed", version)
    record_property("patches", len(MindSpeedPatchesManager.patches_info))
    assert optimizer.Adam.__module__ == "mindspeed.core.optimizer.adamw"
    assert not optimizer.USING_PYTORCH_OPTIMIZER


def test_it_counts_its_updates_in_the_group() -> None:
    from megatron.core import optimizer

    weight = torch.nn.Parameter(torch.ones(2))
    adam = optimizer.Adam([weight], lr=0.1)
    for _ in range(2):
        weight.grad = torch.ones(2)
        adam.step()
    assert adam.param_groups[0]["step"] == 2
    assert adam.state[weight].keys() == {"exp_avg", "exp_avg_sq"}


def test_no_option_of_the_command_line_became_a_field_of_the_configuration() -> None:
    """pytest's `--junitxml`, which no feature of MindSpeed knows."""
    from mindspeed.args_utils import get_mindspeed_args  # type: ignore[import-not-found]

    assert "junitxml" not in vars(get_mindspeed_args())


def test_a_float64_all_reduce_is_lost() -> None:
    """What tests/trainer/collectives.py guards against; without this it could go."""
    float32, float64 = torch.ones(1), torch.ones(1, dtype=torch.float64)
    assert dist.all_reduce(float32, async_op=True) is not None
    assert dist.all_reduce(float64, async_op=True) is None
