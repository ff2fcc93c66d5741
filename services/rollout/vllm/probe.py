"""Does vLLM compute with what it loads? Asked at the start, before any version.

The read-back digests a layer's parameters. It cannot see what else may stay as it was: a captured
graph that reads other memory, a packed or transposed copy, a gate that was folded into something.
So synthetic weights are loaded, the way of every version, and vLLM says what it makes of them.

1. Load weights P. Take the log-probabilities of the likeliest next tokens of one prompt.
2. Load P with the embeddings shifted by one token. The answer must differ: else nothing that is
   loaded has an effect. (The output layer may be the embedding. Then all log-probabilities move by
   one token; so those of the prompt's next token are compared in order of size, whichever tokens have them.)
   The same with the output projection of every attention, of every MLP, and with every query norm:
   a kind of block that keeps vLLM's dummy weights adds nothing, and step 3 would not show it.
3. Load M: other numbers in every tensor, but the same function as P (`synthetic.GAUGES`). The answer
   must be that of step 1. One tensor that stayed as it was in any earlier load, in one layer of any
   number, does not fit the others any more: the factors between P and M are 4 to 2^72.

Where step 3 fails, the same prompt is sent once more: what has changed then is the device's noise,
and is allowed for. Then the gauges are tried one by one: those that fail show the kind of tensor.

Cost: five loads of a version (six with query norms) and as many requests of two tokens. Two replicas
of SmolLM2-135M that start together on two busy cores take 3 to 4 s for it. On 70B over 8 ranks each
load moves 17.5 GB a rank to its device, from buffers of a few MB. That takes about as long as loads
of a version that lies on the host; that has not been measured.

What it cannot judge: the final norm and the output layer, where both stayed as they were; the
attention or the MLP of one layer alone that computes with nothing but vLLM's dummy weights; rows of
the embedding that are not in the prompt; experts that no token was sent to; graphs captured for
other sizes of a batch; and a vision tower, through which no text passes.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from services.rollout.vllm.loading.synthetic import (
    EMBEDDING,
    GAUGES,
    KINDS,
    SyntheticVersion,
    gauges_of,
    is_of_tower,
    kind_of,
    read_shapes,
)
from services.rollout.vllm.reported_experts import reported_experts
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.wire import health_note

logger = logging.getLogger(__name__)

NUM_LIKELIEST = 16
NUM_COMPARED = 8
"""How many of the likeliest tokens are compared: noise may change which one is the last of those that are reported."""
TOLERANCE = 0.05
"""The allowed difference of a log-probability, besides noise. One layer of 80 that computes with the dummy weights is 0.1
off, any other staleness more."""
MAX_NOISE = 0.5
MIN_EFFECT = 0.2
"""The least effect of other embeddings on a log-probability; 1 or 2 are usual."""
SHIFTED = (EMBEDDING, "o_proj.weight", "down_proj.weight", "q_norm.weight")
"""What must have an effect. An attention or an MLP that still computes with vLLM's dummy weights adds
nothing to the stream, whatever was loaded: so no gauge shows it."""
SHIFTS = (1, 2, 3)
"""Only the first one, unless that happens to change little."""
PROMPT_TOKENS = 8
NEW_TOKENS = 2
"""The first one comes from a prefill, the other from decoding, which has graphs of its own."""


@dataclass(frozen=True, slots=True)
class Likeliest:
    """What is said of one position.

    Example: Likeliest(token_id=5, logprobs={5: -0.2, 9: -1.9})
    """

    token_id: int
    """The one that was taken."""
    logprobs: Mapping[int, float]
    """By token, for the NUM_LIKELIEST likeliest ones."""


Answer = Sequence[Likeliest]


class Probe:
    """Example: await Probe(load, answer, SyntheticVersion(shapes, "bfloat16", {}), "…").run()"""

    def __init__(
        self,
        load: Callable[[SyntheticVersion], Awaitable[None]],
        answer: Callable[[], Awaitable[Answer]],
        plain: SyntheticVersion,
        remedy: str,
    ) -> None:
        """`load` takes a version as a real one is taken, and clears cached keys and values.
        `answer` is vLLM's to a prompt that is always the same. `remedy` ends a refusal."""
        self._load = load
        self._answer = answer
        self._plain = plain
        self._remedy = remedy
        self._tolerance = TOLERANCE
        # A prompt without images does not pass the vision tower.
        self._names = [name for name in plain.shapes if not is_of_tower(name)]
        present = {kind_of(name) for name in self._names}
        self._shifted = [kind for kind in SHIFTED if kind in present]

    async def run(self) -> None:
        """Raises InputError naming the kinds of tensors that vLLM does not compute with."""
        unknown = [name for name in self._names if kind_of(name) not in KINDS]
        if unknown:
            logger.warning(
                "whether vllm computes with what it loads stays unknown: %s is of no kind that the"
                " start's probe knows (services/rollout/vllm/loading/synthetic.py)",
                unknown[0],
            )
            return
        plus = dict.fromkeys(gauges_of(self._names), 1)
        self._say(1)
        before = await self._answer_under(plus)
        for number, kind in enumerate(self._shifted, start=2):
            self._say(number)
            if not await self._has_effect(kind, plus, before):
                raise self._refusal(f"other numbers in every {kind} change nothing")
        self._say(2 + len(self._shifted))
        after = await self._answer_under(dict.fromkeys(plus, -1))
        if self._are_same(before, after):
            return
        self._tolerance += min(4 * distance(after, await self._answer()), MAX_NOISE)
        if not self._are_same(before, after):
            logger.warning("vllm does not compute with all that it has loaded; asking with what")
            stale = ", ".join(await self._find_stale())
            raise self._refusal(f"something stays as it was, probably one of {stale}")

    def _say(self, number: int) -> None:
        total = 2 + len(self._shifted)
        health_note.own.say(f"probes its engine: {number} of {total} synthetic versions")

    async def _has_effect(self, kind: str, gauges: Mapping[str, int], before: Answer) -> bool:
        for shift in SHIFTS:
            after = await self._answer_under(gauges, shifted=kind, shift=shift)
            if effect(before, after) > MIN_EFFECT:
                return True
        return False

    async def _answer_under(self, gauges: Mapping[str, int], **changes: Any) -> Answer:
        await self._load(replace(self._plain, gauges=gauges, **changes))
        return await self._answer()

    async def _find_stale(self) -> list[str]:
        failed: set[str] = set()
        for gauge in gauges_of(self._names):
            answers = [await self._answer_under({gauge: sign}) for sign in (1, -1)]
            if not self._are_same(*answers):
                failed.add(gauge)
        return stale_kinds(failed, {kind_of(name) for name in self._names})

    def _are_same(self, left: Answer, right: Answer) -> bool:
        return distance(left, right) <= self._tolerance

    def _refusal(self, what: str) -> InputError:
        return InputError(
            f"vllm does not compute with the weights that it has loaded: {what}; {self._remedy}"
        )


async def probe_engine(
    llm: Any,
    config: RunConfig,
    load: Callable[[SyntheticVersion], Awaitable[None]],
    remedy: str,
) -> None:
    """`llm`: an AsyncLLM without requests. The others are `Probe`'s, and so is the error."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    vocab_size = llm.model_config.get_vocab_size()
    prompt = spread_prompt(vocab_size, config.max_model_tokens)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=min(NEW_TOKENS, config.max_model_tokens - len(prompt)),
        ignore_eos=True,
        logprobs=min(NUM_LIKELIEST, vocab_size),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    names = (f"probe-{number}" for number in itertools.count())

    async def answer() -> Answer:
        tokens = TokensPrompt(prompt_token_ids=list(prompt))
        outputs = [output async for output in llm.generate(tokens, params, next(names))]
        completion = outputs[-1].outputs[0]
        reported_experts(
            config, completion, len(prompt), len(completion.token_ids)
        )  # where they are needed
        return [
            Likeliest(token, {other: found.logprob for other, found in position.items()})
            for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
        ]

    plain = SyntheticVersion(read_shapes(config.model.path), config.model.dtype, {})
    await Probe(load, answer, plain, remedy).run()


def distance(left: Answer, right: Answer) -> float:
    """The largest difference of a log-probability, up to where other tokens were taken; infinite
    where one is no number.

    A token that is not among those reported on the right is there less likely than any of them.
    """
    found = 0.0
    for one, other in zip(left, right, strict=True):
        least = min(other.logprobs.values())
        for token in sorted(one.logprobs, key=lambda token: -one.logprobs[token])[:NUM_COMPARED]:
            difference = abs(one.logprobs[token] - other.logprobs.get(token, least))
            if math.isnan(difference):
                return math.inf
            found = max(found, difference)
        if one.token_id != other.token_id:
            break
    return found


def effect(left: Answer, right: Answer) -> float:
    """The largest difference between the log-probabilities of the first position, in descending
    order: 0 also where each has only passed to another token."""
    values = [
        sorted(answer[0].logprobs.values(), reverse=True)[:NUM_COMPARED] for answer in (left, right)
    ]
    return max(abs(one - other) for one, other in zip(*values, strict=True))


def stale_kinds(failed: Set[str], present: Set[str]) -> list[str]:
    """The kinds of tensors, of those in the model, that may be stale when these gauges failed:
    what all of them change, for one stale kind need not show in each of its gauges. Where they
    have nothing in common, several kinds are stale.

    Example: stale_kinds({"values", "residual stream"}, KINDS) == ["o_proj.weight"]
    """
    changed = [GAUGES[gauge].keys() & present for gauge in sorted(failed)]
    common = set(present).intersection(*changed)
    return sorted(common or set().union(*changed))


def spread_prompt(vocab_size: int, max_tokens: int) -> tuple[int, ...]:
    """Tokens from all over the vocabulary, so that each rank's part of it has some."""
    count = max(1, min(PROMPT_TOKENS, max_tokens - NEW_TOKENS))
    return tuple((2 * number + 1) * vocab_size // (2 * count) for number in range(count))
