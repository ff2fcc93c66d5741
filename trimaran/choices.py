"""Names that a configuration may give, and the code behind each: one table a choice.

To add an engine, say, write its class and add one line to `ENGINES`. `rollout.engine: mine` is then a
valid configuration, and a replica that is configured so imports the class and makes it.

    ENGINES["mine"] = "my_package.engine:MyEngine"
"""

from __future__ import annotations

import importlib
from typing import Any

ENGINES = {
    "vllm": "services.rollout.vllm.engine:VllmEngine",
    "transformers": "services.rollout.transformers.engine:TransformersEngine",
}
"""`rollout.engine`: classes, called with (RunConfig, Device), that keep the contract of
`services.rollout.engine.Engine`."""

AGGREGATIONS = {
    "token_mean": "services.trainer.grpo.loss:token_mean",
    "sequence_mean": "services.trainer.grpo.loss:sequence_mean",
}
"""`algorithm.aggregation`: functions from the number of trained tokens of each completion of a
mini-batch to the weight of one token of each in the loss."""

DIGESTS = {
    "xxh3-128": "services.weight_sync.data.digest:xxh3_128",
    "polynomial-m31": "services.weight_sync.data.digest:polynomial_m31",
}
"""`weight_sync.digest`: functions from a contiguous uint8 tensor, on any device, to 32 hex digits."""


def load(place: str) -> Any:
    """The object at "package.module:name". Its module is imported here and not before.

    Example: load("math:sqrt")(9.0) == 3.0
    """
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
