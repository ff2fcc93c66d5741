"""Types of values: numbers within bounds, addresses, places, devices."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field

from trimaran.choices import SINKS
from trimaran.errors import did_you_mean
from trimaran.host.device import is_gpu_uuid
from trimaran.telemetry.metrics import GREEDY_REWARD, METRICS, REWARD_MEAN

MAX_COUNT = 10**9
MAX_PROCESSES = 1024
MAX_THREADS = 1024
MAX_BF16_BETA = 0.99
"""bfloat16 has 8 significant bits: a change of less than 1/512 to 1/256 of a number rounds to none."""
MAX_SHARE = 1000
MAX_DATASETS = 64
MAX_SECONDS = 366 * 86400.0
"""A year. Timers of an operating system end long before the greatest float."""
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
NonNegative = Annotated[int, Field(ge=0)]
Threads = Annotated[int, Field(ge=1, le=MAX_THREADS)]
Samples = Annotated[int, Field(ge=0, le=1000)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


def _check_port(address: str) -> str:
    if int(address.rpartition(":")[2]) > LAST_PORT:
        raise ValueError(f"there is no port above {LAST_PORT} (given: {address!r})")
    return address


def check_subnet(subnet: str) -> str:
    try:
        network = ipaddress.ip_network(subnet)
    except ValueError as error:
        raise ValueError(f"{error}; name a subnet as 10.0.0.0/8 (given: {subnet!r})") from None
    if network.is_loopback:
        raise ValueError(f"{subnet} is this machine alone; leave the key out for that")
    return str(network)


def check_ports(ports: str) -> str:
    first, last = map(int, ports.split("-"))
    if not FIRST_PORT <= first <= last <= LAST_PORT:
        raise ValueError(f"must be a range within {FIRST_PORT}-{LAST_PORT} (given: {ports!r})")
    return ports


def _check_place(url: str) -> str:
    user, at, _ = url.partition("://")[2].partition("/")[0].partition("@")
    if at and ":" in user:
        raise ValueError("holds credentials; give them in the environment")
    return url if "://" in url else str(Path(url).resolve())


def _check_devices(value: Any) -> Any:
    if value != "auto" and not is_device_list(value):
        raise ValueError(
            "must be auto or a list of device numbers, or of UUIDs of GPUs, each once, such as [0, 1]"
            f" or [GPU-8932f937, MIG-dc4d] (given: {value!r})"
        )
    return value


def is_device_list(value: object) -> bool:
    """Numbers or UUIDs, at least one, none twice."""
    if not isinstance(value, list | tuple) or not value:
        return False
    names = cast(list[Any], value)
    are_numbers = all(type(name) is int and name >= 0 for name in names)
    are_uuids = all(isinstance(name, str) and is_gpu_uuid(name) for name in names)
    return (are_numbers or are_uuids) and len(set(names)) == len(names)


def _check_eager(value: Any) -> Any:
    if value != "auto" and not isinstance(value, bool):
        raise ValueError(f"must be auto, true or false (given: {value!r})")
    return value


def _check_recompute(value: Any) -> Any:
    if value != "selective" and not isinstance(value, bool):
        raise ValueError(f"must be true, false or selective (given: {value!r})")
    return value


def check_best_by(key: str) -> str:
    bare = key.removeprefix("-")
    if "<" in bare or not any(metric.has(bare) for metric in METRICS):
        hint = did_you_mean(bare, [metric.key for metric in METRICS])
        raise ValueError(
            f"{key!r} is no metric{hint}; docs/metrics.md has them, such as {GREEDY_REWARD} and {REWARD_MEAN}."
            " What stands there in angle brackets is a name or a number here"
        )
    return key


def _check_scalar(value: Any) -> Any:
    if type(value) not in (bool, int, float, str):
        raise ValueError(f"must be true, false, a number or a text (given: {value!r})")
    return value


def _check_thinking(kwargs: Mapping[str, bool | float | str]) -> Mapping[str, bool | float | str]:
    value = kwargs.get("enable_thinking", True)
    if type(value) is not bool:
        # Templates compare it with false: 0 and "false" would leave it on.
        raise ValueError(f"enable_thinking must be true or false (given: {value!r})")
    return kwargs


Eager = Annotated[Literal["auto"] | bool, BeforeValidator(_check_eager)]
Devices = Annotated[Literal["auto"] | tuple[int | str, ...], BeforeValidator(_check_devices)]
Scalar = Annotated[bool | int | float | str, BeforeValidator(_check_scalar)]
TemplateKwargs = Annotated[Mapping[str, Scalar], AfterValidator(_check_thinking)]
Recompute = Annotated[bool | Literal["selective"], BeforeValidator(_check_recompute)]
LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TransportName = Literal["auto", "collective", "relay"]
SchemeName = Literal["verl", "mindspeed-rl"]
SinkName = Annotated[str, AfterValidator(SINKS.check)]
FIRST_PORT, LAST_PORT = 1024, 65535
PlaceUrl = Annotated[str, AfterValidator(_check_place)]
"""A folder, or a bucket such as s3://name/path."""
Address = Annotated[
    str, Field(pattern=r"^([^:\s]+|\[[0-9a-fA-F:.]+\]):\d{1,5}$"), AfterValidator(_check_port)
]


def as_branch(value: Any) -> dict[str, Any] | None:
    """A mapping of a YAML file; None for any other value."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else None
