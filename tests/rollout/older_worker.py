"""A worker as vLLM 0.23 and vLLM-Ascend 0.23 have it: it runs the layerwise reload around its transfer engine."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.v1.worker.cpu_worker import CPUWorker


class OlderWorker(CPUWorker):
    weight_transfer_engine: Any

    def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        initialize_layerwise_reload(self.model_runner.model)
        self._weight_update_active = True

    def update_weights(self, update_info: Any) -> None:
        engine = self.weight_transfer_engine
        load_weights = self.model_runner.model.load_weights
        try:
            engine.receive_weights(engine.parse_update_info(update_info), load_weights=load_weights)
        except BaseException:
            self._weight_update_active = False  # it forgets the reload, which is half done
            raise

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model_runner.model, self.model_config)
        self._weight_update_active = False
