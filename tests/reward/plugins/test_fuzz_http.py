"""Whatever is sent, the server answers: with scores or a Problem, never with a 500."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from services.reward.outcome import Fault, Indigestible, NotApplicable, Outcome, Value
from services.reward.plugins.contract import CONTRACT, Info
from services.reward.plugins.serving.app import make_app
from trimaran.plugins.limits import ServerLimits
from trimaran.rewards import Sample
from trimaran.wire.http_problems import Problem

OUTCOMES: Sequence[Outcome] = (
    Value(0.5, {"words": 3.0}),
    Indigestible("too slow"),
    Fault("worker gone"),
    NotApplicable(),
)


async def judge(samples: Sequence[Sample]) -> Sequence[Outcome]:
    return [OUTCOMES[len(sample.prompt_id) % len(OUTCOMES)] for sample in samples]


app = make_app(judge, Info(contract=CONTRACT, name="fuzzed"), limits=ServerLimits(max_body=1 << 20))
refusals = {"checks": {"negative_data_rejection": {"expected-statuses": [405, 413, 422]}}}
schema = schemathesis.openapi.from_asgi(
    "/openapi.json", app, config=schemathesis.Config.from_dict(refusals)
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@schema.parametrize()
@settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list[Any](HealthCheck),
)
def test_the_server_is_as_its_schema_says(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)


def post(body: bytes) -> tuple[int, bytes]:
    """Without sockets."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/score"}
    scope |= {"headers": [(b"content-type", b"application/json")], "query_string": b""}
    asyncio.run(app(scope | {"http_version": "1.1", "scheme": "http"}, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


NO_REQUESTS = [
    *(b"", b"[]", b"\xff\xfe", b'{"samples": ' * 10_000, b'{"contract": NaN}'),
    b'{"contract":"trimaran.reward/1","idempotency_key":"k","samples":[]}',
    b'{"contract":"trimaran.reward/1","idempotency_key":"k","samples":[{"text":"\\udc00"}]}',
]


@pytest.mark.parametrize("body", NO_REQUESTS)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    status, content = post(body)
    assert status == 422
    Problem.model_validate_json(content)
