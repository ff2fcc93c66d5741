"""How vLLM is set up: environment, engine arguments, and what a start can do without."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from services.rollout.hosts import ONE_HOST, HostPlace
from services.rollout.vllm import ascend
from services.rollout.vllm.plugin import BACKEND
from services.rollout.vllm.reported_experts import check_reports_experts
from trimaran.choices import FAMILIES
from trimaran.config import LoraSection, RunConfig
from trimaran.data.images.processor import takes_images
from trimaran.errors import InputError
from trimaran.host.device import Device
from trimaran.run.network import find_host, split

STREAM_TOKENS = 16
"""vLLM hands out a completion's first token, then this many at a time: per token costs 5%."""
BLOCK_TOKENS = 32
"""Tokens of one block of keys and values; what vLLM's attention on the host likes best."""

LOGPROBS_MODE = "processed_logprobs"
"""vLLM's name for log-probabilities at the sampling temperature."""


def inspect_models_here() -> None:
    """vLLM looks at a model's class in a process of its own, lest it touch a GPU: 13 s on a first start."""
    from vllm.model_executor.models import registry

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda inspect: inspect()


def check_environment(environment: Mapping[str, str], device: Device) -> None:
    """Before anything of vLLM. Raises InputError for a variable with which no version would load."""
    if ascend.is_npu(device):
        ascend.check_format(environment)
    if (given := environment.get("VLLM_PLUGINS")) is None:
        return
    # vLLM's processes load no other plugin than these; it splits the same way.
    names = given.split(",")
    needed = (BACKEND, *(ascend.PLUGINS if ascend.is_npu(device) else ()))
    if lacking := [name for name in needed if name not in names]:
        raise InputError(
            f"VLLM_PLUGINS={given}: vllm's processes would not load {', '.join(lacking)}; unset it, or"
            " add that, with commas and no spaces"
        )


def set_environment(config: RunConfig, on_host: bool) -> None:
    """Before vLLM is imported; what the user has set stays."""
    host = find_host(config.network)
    defaults = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_HOST_IP": host.address,
        "HF_HUB_OFFLINE": "1",
        # See `ascend`.
        "VLLM_ASCEND_ENABLE_NZ": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if not host.is_loopback:
        defaults["VLLM_PORT"] = str(split(host.free_address())[1])  # the first one that it tries
    if on_host:
        defaults |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # Otherwise the core starts one more process for its worker, and both spin.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if config.rollout.tensor_parallel == 1 else "1",
            "TORCHDYNAMO_DISABLE": "1",
            "OMP_NUM_THREADS": str(config.rollout.threads),
        }
        # vLLM refuses a connector beside expandable segments, of which there are none on a host.
        os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def is_eager(config: RunConfig, device: Device) -> bool:
    """Whether vLLM is to compute without captured graphs."""
    chosen = config.rollout.eager
    return device.eager if chosen == "auto" else chosen


def _has_latents(path: Path) -> bool:
    """Whether the config.json is of a model with latent attention."""
    family = json.loads(path.read_text(encoding="utf-8"))["model_type"] if path.is_file() else ""
    return family in FAMILIES.names() and FAMILIES.load(family).latent


PLAIN_ROTARY = {"custom_ops": ["-rotary_embedding"]}
"""vLLM computes rotary embeddings in Python."""


def adapter_arguments(lora: LoraSection) -> dict[str, Any]:
    """Raises InputError for a rank that this vLLM does not take, and where it would wrap other layers, too."""
    from vllm.config import lora as vllm_lora

    if lora.rank not in (ranks := get_args(vllm_lora.MaxLoRARanks)):
        raise InputError(
            f"trainer.lora.rank: {lora.rank} with merged: false, and vllm takes"
            f" {', '.join(map(str, ranks))}; take one of these, or leave merged out"
        )
    if not hasattr(vllm_lora.LoRAConfig, "target_modules"):
        raise InputError(
            "trainer.lora.merged: this vllm adds adapters to every layer or none; leave it out, or install"
            " the version that requirements/cuda.txt names"
        )
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": lora.rank,
        "lora_target_modules": list(lora.targets),
    }


def engine_arguments(
    config: RunConfig, device: Device, transfer: str | None, place: HostPlace = ONE_HOST
) -> dict[str, Any]:
    """`transfer`: the weight-transfer engine to use; None where this vLLM has none."""
    rollout = config.rollout
    arguments = {
        "model": str(config.model.path),
        "dtype": config.model.dtype,
        # Version 0 arrives by weight sync like every other.
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "max_model_len": config.max_model_tokens,
        "max_num_seqs": rollout.max_concurrency,
        "tensor_parallel_size": rollout.tensor_parallel,
        "gpu_memory_utilization": rollout.memory_fraction,
        "enforce_eager": is_eager(config, device),
        "enable_prefix_caching": rollout.prefix_cache,
        "logprobs_mode": LOGPROBS_MODE,
        "stream_interval": STREAM_TOKENS,
        "worker_extension_cls": "services.rollout.vllm.worker.WorkerExtension",
        "disable_log_stats": True,
        "enable_log_requests": False,
    }
    if config.is_colocated and not device.on_host:
        arguments["enable_sleep_mode"] = True
    if config.trainer.router.replay:
        check_reports_experts()
        arguments["enable_return_routed_experts"] = True
    if config.trainer.lora and config.trainer.sends_adapters:
        arguments |= adapter_arguments(config.trainer.lora)
    if place.count > 1:
        address, port = split(place.rendezvous)
        arguments |= {
            "distributed_executor_backend": "mp",
            "nnodes": place.count,
            "node_rank": place.rank,
            "master_addr": address,
            "master_port": port,
        }
    if transfer is not None:
        from vllm.config import WeightTransferConfig

        arguments["weight_transfer_config"] = WeightTransferConfig(backend=transfer)
    has_images = takes_images(config.model.path)
    if has_images:
        from services.rollout.vllm.images import image_arguments

        arguments |= image_arguments(config)
    if ascend.is_npu(device):
        arguments["additional_config"] = ascend.ADDITIONAL_CONFIG
    if device.on_host:
        arguments |= {
            "block_size": BLOCK_TOKENS,
            "kv_cache_memory_bytes": int(rollout.kv_cache_gib * 2**30),
        }
        # Beside a connector vLLM reports no experts, and takes embeddings of images for prompts.
        if rollout.prefix_cache and not (config.trainer.router.replay or has_images):
            from vllm.config import KVTransferConfig

            arguments["kv_transfer_config"] = KVTransferConfig(
                kv_connector="SharedTails",
                kv_connector_module_path="services.rollout.vllm.shared_tails",
                kv_role="kv_both",
            )
        if _has_latents(config.model.path / "config.json"):
            # Left to itself, vLLM 0.30 takes AMX where the processor has it, and that loads weights once alone.
            # Its rotary kernel for processors takes the heads of a token for tokens.
            arguments["attention_backend"] = "CPU_MLA"
            arguments["compilation_config"] = PLAIN_ROTARY
    return arguments
