"""What must hold on an Ascend NPU before vLLM-Ascend starts.

It can keep matrices in the processor's own format, FRACTAL_NZ, for short NZ. It refuses to update
weights then, which would show only at the first version. One release reads a variable for it
(0.23), the other its `additional_config` (0.30), so both are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimaran.errors import InputError
from trimaran.host.device import Device

NZ_VARIABLES = ("VLLM_ASCEND_ENABLE_NZ", "VLLM_ASCEND_ENABLE_FUSED_MC2")
"""Each makes it keep some weights in NZ; the second one those of fused experts."""
PLUGINS = ("ascend", "ascend_kv_connector", "ascend_model")
"""Entry points that it needs: its platform, its patches of vLLM's core, its models."""
ADDITIONAL_CONFIG: dict[str, Any] = {"weight_nz_mode": 0}
"""For vLLM's argument of that name, which each platform reads in its own way."""


def is_npu(device: Device) -> bool:
    return device.kind == "npu"


def check_format(environment: Mapping[str, str]) -> None:
    """Raises InputError when a variable asks for NZ."""
    for name in NZ_VARIABLES:
        if environment.get(name, "0") != "0":
            raise InputError(
                f"{name}={environment[name]}: vllm-ascend would keep weights in NZ, its processor's"
                " matrix format, and take no new version of them; unset it"
            )


def check_processor() -> None:
    """Raises InputError for a processor that has its weights in NZ whatever is set."""
    from vllm_ascend.utils import get_ascend_device_type  # pyright: ignore

    kind: str = get_ascend_device_type().name
    if kind == "_310P":
        raise InputError(
            "the Ascend 310P always keeps weights in NZ, its own matrix format, and vllm-ascend takes"
            " no new version of them there; use Atlas A2 or A3"
        )
