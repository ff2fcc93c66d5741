"""The HTTP contract of environment plugins, version 1. docs/environment-plugins.md explains it.

    GET  {url}/v1/health -> 200 Health; 503 while it can open none
    GET  {url}/v1/info   -> 200 Info
    POST {url}/v1/open   OpenRequest  -> 200 OpenAnswer
    POST {url}/v1/step   StepRequest  -> 200 StepAnswer
    POST {url}/v1/close  CloseRequest -> 200 CloseAnswer

The caller names the session. Session and turn are the idempotency key: the last turn, asked again, has the
same answer and changes nothing; an open session, opened again, begins again; a closed one, closed again,
stays closed.
Health and Problem are in trimaran/plugins/forms.py. Errors are a Problem, a document of RFC 9457: 401 wrong or
missing bearer token, 404 no such session, 409 a turn that is neither the last nor the next, 413 too many bytes,
422 not a request of this contract, 500 the environment failed, 503 no room.
Numbers are finite. Unknown fields are refused by a server and ignored by a client.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from trimaran.plugins.forms import Lenient, Strict
from trimaran.plugins.messages import PluginMessage

CONTRACT = "trimaran.environment/1"

Contract = Literal["trimaran.environment/1"]
Session = Annotated[str, Field(min_length=1, max_length=200)]


class PluginRow(Strict):
    """A row of the dataset."""

    messages: list[PluginMessage] = Field(default=[])
    answer: str = ""
    task: str = "default"
    prompt_id: str = ""
    extras: dict[str, str] = Field(default={})
    """The row's other columns; what is not a text there is JSON here."""


class OpenRequest(Strict):
    contract: Contract
    session: Session
    row: PluginRow
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    """The same for all episodes of a group, which begin alike."""
    options: dict[str, JsonValue] = Field(default={})


class StepRequest(Strict):
    contract: Contract
    session: Session
    turn: Annotated[int, Field(ge=1)]
    """From 1 on."""
    message: PluginMessage
    """The policy's."""
    finish_reason: Literal["stop", "length"] = "stop"


class CloseRequest(Strict):
    contract: Contract
    session: Session


class AnswerMessage(PluginMessage):
    model_config = ConfigDict(extra="ignore")


class AnswerTool(Lenient):
    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    parameters: dict[str, JsonValue] = Field(default={})
    """A JSON schema."""


class OpenAnswer(Lenient):
    contract: Contract
    messages: list[AnswerMessage] | None = None
    """What the episode begins with; the row's messages where this is absent."""
    tools: list[AnswerTool] = Field(default=[])


class StepAnswer(Lenient):
    contract: Contract
    messages: list[AnswerMessage] = Field(default=[])
    reward: float | None = None
    """For this step."""
    done: bool = False
    num_calls: Annotated[int, Field(ge=0)] = 0
    """Of tools."""
    num_failures: Annotated[int, Field(ge=0)] = 0
    """Of the calls. The messages say why."""


class CloseAnswer(Lenient):
    contract: Contract


class Info(Lenient):
    contract: Contract
    name: str
    max_sessions: Annotated[int, Field(ge=1)] | None = None
    """At a time; None where it does not know."""
