"""Says whether tokens were made by the very weights that their stamp names."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from tests.faults.versions import DTYPES, Weights, llama_shapes
from trimaran.model.folder import read_model_folder
from trimaran.types import Completion, Group, Segment, VersionId

NUM_KEPT = 8
"""Steps back that a completion under way may have begun at."""
TOLERANCE = 0.01
"""Of a log-probability in float32; another version's differs by far more."""


class Oracle(Protocol):
    def learn(self, step: int) -> None:
        """The version after `step` steps may be published from now on."""
        ...

    def is_right(self, prompt: Sequence[int], completion: Completion, part: Segment) -> bool: ...


@dataclass(slots=True)
class Judge:
    """Counts the tokens that it is shown, and keeps what was wrong with them."""

    oracle: Oracle
    suspects: set[tuple[str, VersionId]] = field(default_factory=set)
    """Makers whose memory the driver itself has spoilt, and what was loaded there then."""
    num_tokens: int = 0
    num_spoilt: int = 0
    """Wrong tokens of suspects: foreseen, but they must not train."""
    wrong: list[str] = field(default_factory=list)
    """Wrong tokens of all others: there must be none."""

    def is_right(self, group: Group) -> bool:
        right = True
        for completion in group.completions_G:
            for part in completion.segments:
                self.num_tokens += part.end - part.start
                if self.oracle.is_right(group.prompt_token_ids, completion, part):
                    continue
                right = False
                if (part.replica, part.version) in self.suspects:
                    self.num_spoilt += part.end - part.start
                else:
                    self.wrong.append(
                        f"{part.replica} stamped {part.version} on tokens of other weights:"
                        f" {completion.token_ids_T[part.start : part.end]}"
                    )
        return right


class ChecksumOracle:
    """For the stand-in engine: each token is the checksum of what it has loaded."""

    def __init__(self, model: Path, dtype: str, seed: int) -> None:
        shapes = llama_shapes(read_model_folder(model))
        self._weights = Weights.first(shapes, DTYPES[dtype], seed)
        self._tokens = {0: self._weights.checksum()}

    def learn(self, step: int) -> None:
        if step not in self._tokens:
            self._weights.advance(step)
            self._tokens[step] = self._weights.checksum()

    def is_right(self, prompt: Sequence[int], completion: Completion, part: Segment) -> bool:
        made = set(completion.token_ids_T[part.start : part.end])
        return made == {self._tokens[part.version.step]}


class LogprobOracle:
    """For a real engine: plain transformers gives the same log-probabilities with those weights."""

    def __init__(self, model: Path, dtype: str, seed: int) -> None:
        import transformers

        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(model)
        self._model.eval()
        shapes = llama_shapes(read_model_folder(model))
        self._weights = Weights.first(shapes, DTYPES[dtype], seed)
        self._kept: OrderedDict[int, dict[str, torch.Tensor]] = OrderedDict()
        self._keep()

    def learn(self, step: int) -> None:
        if step > self._weights.step:
            self._weights.advance(step)
            self._keep()

    def _keep(self) -> None:
        self._kept[self._weights.step] = copy.deepcopy(self._weights.tensors)
        while len(self._kept) > NUM_KEPT:
            self._kept.popitem(last=False)

    def is_right(self, prompt: Sequence[int], completion: Completion, part: Segment) -> bool:
        self._model.load_state_dict(self._kept[part.version.step], strict=False)
        tokens = torch.tensor([[*prompt, *completion.token_ids_T]])
        with torch.no_grad():
            logprobs = self._model(tokens).logits[0].float().log_softmax(-1)
        first = len(prompt) + part.start
        places = torch.arange(first - 1, len(prompt) + part.end - 1)
        expected = logprobs[places, tokens[0, places + 1]]
        made = torch.tensor(completion.logprobs_S[part.start : part.end])
        return bool((expected - made).abs().max() < TOLERANCE)
