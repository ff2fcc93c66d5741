"""The HTTP contract of reward plugins, version 1. docs/reward-plugins.md explains it.

    GET  {url}/v1/health -> 200 Health; 503 while it cannot score
    GET  {url}/v1/info   -> 200 Info
    POST {url}/v1/score  ScoreRequest -> 200 ScoreAnswer

Health and Problem are in trimaran/plugins/forms.py. Errors are a Problem, a document of RFC 9457: 401 wrong or missing bearer token, 409 an idempotency
key that was used for another request, 413 too many samples or bytes, 422 not a ScoreRequest, 503
overloaded.
Numbers are finite. Unknown fields are refused by a server and ignored by a client.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from trimaran.plugins.forms import Lenient, Strict
from trimaran.plugins.messages import PluginMessage

CONTRACT = "trimaran.reward/1"
MAX_SAMPLES = 1000


class PluginSample(Strict):
    """One completion."""

    messages: list[PluginMessage] = Field(default=[])
    """The prompt, without images."""
    text: str
    """The completion."""
    answer: str = ""
    """The reference answer; empty where the dataset has none."""
    task: str = "default"
    prompt_id: str = ""
    extras: dict[str, str] = Field(default={})
    """The row's other columns; what is not a text there is JSON here."""
    num_tokens: Annotated[int, Field(ge=0)] = 0
    """Length of the completion."""
    finish_reason: Literal["stop", "length", "turns"] = "stop"
    """turns: an episode that had all its turns."""
    conversation: list[PluginMessage] = Field(default=[])
    """Of an episode: all its messages behind the prompt's; `text` is the last of the policy. Absent of an
    answer of one turn."""


class ScoreRequest(Strict):
    contract: Literal["trimaran.reward/1"]
    idempotency_key: Annotated[str, Field(min_length=1, max_length=200)]
    """The same request under the same key gets the same scores, however often it is sent. Only an
    answer with something faulted in it may be made again."""
    samples: Annotated[
        list[PluginSample], Field(min_length=1, json_schema_extra={"maxItems": MAX_SAMPLES})
    ]
    """Completions of one group, or of several. Too many are a 413 and no 422, so they are counted elsewhere."""
    options: dict[str, JsonValue] = Field(default={})


class Scored(Lenient):
    score: float
    parts: dict[str, float] = Field(default={})
    """Further numbers, which become metrics."""
    indigestible: str = ""
    """Why no checker could digest the answer: it crashed or hung the checker twice. `score` is then
    the least one, because hanging the checker must not pay."""


class NotScored(Lenient):
    faulted: Annotated[str, Field(min_length=1)]
    """Why the plugin could not score it, whatever the answer was. The completion gets no score and
    never trains the model."""


class ScoreAnswer(Lenient):
    contract: Literal["trimaran.reward/1"]
    results: list[Scored | NotScored]
    """One a sample, in their order."""


class Info(Lenient):
    contract: Literal["trimaran.reward/1"]
    name: str
    minimum: float | None = None
    """Least score that it gives; None where it does not know."""
    maximum: float | None = None
    max_samples: Annotated[int, Field(ge=1)] = MAX_SAMPLES
    """How many samples one request may hold."""
    deterministic: bool = True
    """Equal samples get equal scores, also under another key."""
