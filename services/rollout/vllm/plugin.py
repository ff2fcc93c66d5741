"""vLLM's entry point `vllm.general_plugins`: makes our weight-transfer engine known to it.

vLLM calls `register` in each of its processes, also for users who only share
our environment: so it is cheap, imports nothing that vLLM has not imported,
may be called any number of times, and never raises.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

BACKEND = "trimaran"
SYNTHETIC = "synthetic"
"""In the place of a shadow's path: the workers make the weights themselves."""
HOST_RANK = "TRIMARAN_HOST_RANK"
"""Environment variable of vLLM's processes: which of the replica's hosts theirs is; the first where it
is not set."""
ENGINE = ("services.rollout.vllm.transfer", "ShadowTransferEngine")


def register() -> bool:
    """True when this vLLM takes weights from our engine; it is left as it is otherwise."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ImportError:
        logger.info("this vllm has no weight-transfer engines; %s is not registered", BACKEND)
        return False
    try:
        WeightTransferEngineFactory.register_engine(BACKEND, *ENGINE)
    except ValueError:
        return True  # its way to say that the name is taken: this process was here before
    except Exception as error:
        # Whatever an API that differs makes of it: vLLM must start.
        logger.warning("vllm did not take the weight-transfer engine %s: %r", BACKEND, error)
        return False
    return True
