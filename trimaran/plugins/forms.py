"""JSON as the contracts have it: strict where a server reads it, checked and lenient where a client does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Model = TypeVar("Model", bound=BaseModel)


class CallError(Exception):
    """Why a plugin gave no answer that can be used; foreign words in it are neither cut nor cleaned."""

    def __init__(self, reason: str, *, retry: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry = retry
        """The same request may be sent again."""
        self.retry_after = retry_after
        """Seconds that the server asks to wait."""


class Strict(BaseModel):
    """What a server reads: nothing is guessed, no text is taken for a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Lenient(BaseModel):
    """What a client reads: a newer server may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Health(Lenient):
    status: Literal["ok", "unavailable"]


class Problem(Lenient):
    """What a client reads of an error; our own server says more (trimaran/wire/http_problems.py)."""

    detail: str
    """What is wrong and what would be right."""


def encode(content: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8. A lone surrogate, which UTF-8 cannot hold, becomes U+FFFD."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def parse(model: type[Model], answer: bytes) -> Model:
    """Raises CallError."""
    try:
        return model.model_validate_json(answer, strict=True)
    except ValidationError as error:
        raise CallError(f"the answer is not as its contract says: {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}" if place else fault["msg"]
