"""The experts that vLLM chose for each token, which it reports with a completion's last output.

They are numbers [tokens of the prompt and of the completion but its last, layers, experts of a token],
uint8, or uint16 where a layer has more than 256. Of a token in the cache of prefixes it reports what was
chosen when its keys and values were computed.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from trimaran.config import RunConfig
from trimaran.errors import InputError

logger = logging.getLogger(__name__)

_has_warned = threading.Event()


def check_reports_experts() -> None:
    """Raises InputError where this vLLM has no option for it."""
    from vllm import __version__
    from vllm.engine.arg_utils import EngineArgs

    if not hasattr(EngineArgs, "enable_return_routed_experts"):
        raise InputError(
            f"trainer.router.replay: vllm {__version__} has no enable_return_routed_experts; install a"
            " newer one, or leave it out"
        )


def keep_experts_of_merged_outputs() -> None:
    """vLLM before 0.32 merges the outputs that have not been taken yet, and forgets the experts of the last one."""
    from vllm.outputs import RequestOutput

    add: Any = RequestOutput.add
    if hasattr(add, "keeps_experts"):
        return

    def keep(self: Any, next_output: Any, aggregate: bool) -> None:
        add(self, next_output, aggregate)
        told = {completion.index: completion for completion in next_output.outputs}
        for completion in self.outputs:
            if completion.index in told and completion.routed_experts is None:
                completion.routed_experts = told[completion.index].routed_experts

    patched: Any = keep
    patched.keeps_experts = True
    RequestOutput.add = patched


def reported_experts(
    config: RunConfig, completion: Any, num_prompt: int, num_tokens: int
) -> tuple[bytes, bytes]:
    """The experts of a completion of `num_tokens` that has ended, and those of its prompt. Empty unless they are
    replayed, where a stop text ended it and vLLM's core was still to report, and where vLLM reports more or
    fewer tokens than it has read: the trainer then chooses itself, while it would refuse the batch with rows
    that do not fit.

    Raises InputError where this vLLM does not tell them.
    """
    if not config.trainer.router.replay:
        return b"", b""
    if (chosen := completion.routed_experts) is None:
        if isinstance(completion.stop_reason, str):
            return b"", b""
        raise InputError(
            "trainer.router.replay: vllm does not report which experts it chose on this device; leave it out"
        )
    if len(chosen) != (num_read := num_prompt + num_tokens - 1):
        _warn_once(len(chosen), num_read)
        return b"", b""
    return chosen[num_prompt:].tobytes(), chosen[:num_prompt].tobytes()


def _warn_once(num_reported: int, num_read: int) -> None:
    if not _has_warned.is_set():
        logger.warning(
            "vllm reported the experts of %d tokens where it had read %d: of this completion, and of others"
            " like it, the trainer chooses them itself",
            *(num_reported, num_read),
        )
    _has_warned.set()
