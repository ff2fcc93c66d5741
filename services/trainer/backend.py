"""Builds this rank's policy: device, ranks, megatron-core, in the order that each needs."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from services.trainer.meeting import Meeting
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.host.device import Device
from trimaran.model.trainer_layout import check_trainer_layout
from trimaran.run.network import find_host

if TYPE_CHECKING:
    from services.trainer.megatron.policy import MegatronPolicy


def build_policy(
    config: RunConfig, meeting: Meeting | None, device: Device, rank: int
) -> MegatronPolicy:
    """Call it in the thread that will compute: it makes the device current there, which is the
    first in sight on every rank (trimaran/run/placement.py).

    Returns when all ranks are there and the weights are loaded. Raises
    InputError for a model that we cannot train in this layout.
    """
    # What it can do without, at each start: it would bury our own last lines.
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    # On an NPU the vendor's adaptor must be in place before megatron-core is imported.
    device.activate(megatron=True)
    if config.run.deterministic:
        device.be_deterministic()
    import torch

    torch.set_num_threads(config.trainer.threads)
    if device.on_host:
        from services.trainer.megatron.cpu import let_megatron_run_on_cpu

        let_megatron_run_on_cpu()
    from megatron.core import parallel_state, tensor_parallel

    from services.trainer.megatron.architecture import read_architecture
    from services.trainer.megatron.policy import MegatronPolicy
    from services.trainer.ranks import join_ranks

    section = config.trainer
    architecture = read_architecture(config.model.path)
    check_trainer_layout(architecture.facts, section)
    if config.max_model_tokens > architecture.facts.max_positions:
        raise InputError(
            f"rollout.max_prompt_tokens + {config.max_answer_key} is {config.max_model_tokens};"
            f" the model has {architecture.facts.max_positions} positions"
        )
    join_ranks(
        device.backend,
        rank,
        config.num_trainer_ranks,
        meeting,
        join_timeout=config.start_timeout,
        collective_timeout=section.step_timeout,
        host=find_host(config.network),
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=section.tensor_parallel,
        pipeline_model_parallel_size=section.pipeline_parallel,
        virtual_pipeline_model_parallel_size=(
            section.virtual_stages if section.virtual_stages > 1 else None
        ),
        context_parallel_size=section.context_parallel,
        expert_model_parallel_size=section.expert_parallel,
        expert_tensor_parallel_size=section.expert_tensor_parallel,
        distributed_timeout_minutes=math.ceil(section.step_timeout / 60),
        create_gloo_process_groups=False,
    )
    # Nothing draws random numbers; megatron-core wants its generators all the same.
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    return MegatronPolicy(config, architecture, device.torch_device())
