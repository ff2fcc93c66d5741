"""Our engine behind vLLM's weight-transfer interface: it loads from a shadow on the same host.

Two generations of that interface are known; a method's parameters distinguish them
apart. In the one the engine owns the whole update. In the other (vLLM 0.23
with vLLM-Ascend) the worker runs the layerwise reload around it and hands it
`load_weights`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from services.rollout.vllm.loading.load import (
    check_missing,
    feed,
    is_tied,
    load_shadow,
    open_tensors,
)


@dataclass
class ShadowInitInfo(WeightTransferInitInfo):
    """Nothing: each update says where its version lies."""


@dataclass
class ShadowUpdateInfo(WeightTransferUpdateInfo):
    path: str
    description: dict[str, Any]
    """`Shadow.path` and `Shadow.description()`."""


class ShadowTransferEngine(WeightTransferEngine[ShadowInitInfo, ShadowUpdateInfo]):
    """One update is one whole version, so a worker never holds half of one between two calls."""

    init_info_cls = ShadowInitInfo
    update_info_cls = ShadowUpdateInfo

    def init_transfer_engine(self, init_info: ShadowInitInfo) -> None:
        """There is nothing to connect to."""

    def start_weight_update(self) -> None:
        """The update does it."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(
        self, update_info: ShadowUpdateInfo, load_weights: MethodType | None = None
    ) -> None:
        """`load_weights`: the model's. Raises ValueError when the model has parameters that the shadow lacks."""
        path, description = update_info.path, update_info.description
        if load_weights is None:
            load_shadow(self.model, self.model_config, self.device, path, description)
        else:
            model: Any = load_weights.__self__
            missing = feed(model, load_weights, open_tensors(model, path, description))
            check_missing(missing, is_tied(model.config))

    def finish_weight_update(self) -> None:
        """The update did it."""

    def shutdown(self) -> None:
        """It holds nothing."""

    @staticmethod
    def trainer_send_weights(*args: Any, **kwargs: Any) -> None:
        """Some versions of the interface ask for a sending side."""
        raise NotImplementedError("trimaran's trainer sends by its own weight sync")
