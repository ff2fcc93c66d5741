"""Whatever is sent, the server answers: with scores or a Problem, never with a 500."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from services.reward.outcome import Fault, Indigestible, NotApplicable, Outcome, Value
from services.reward.plugins.contract import CONTRACT, Info, ScoreAnswer
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

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/score",
        "raw_path": b"/v1/score",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 1),
        "client": ("127.0.0.1", 2),
        "root_path": "",
    }

    async def run() -> None:
        async with asyncio.timeout(30):
            await app(scope, receive, send)

    asyncio.run(run())
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


NO_REQUESTS = [
    *(b"", b"{", b"[]", b"\xff\xfe", b'{"samples": ' * 10_000, b'{"contract": NaN}'),
    b'{"contract": "\\ud800"}',
    b'{"contract":"trimaran.reward/1","idempotency_key":"k","samples":[]}',
    b'{"contract":"trimaran.reward/1","idempotency_key":"k","samples":[{"text":"\\udc00"}]}',
]

json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(
    body=st.sampled_from(NO_REQUESTS)
    | st.binary(max_size=200)
    | json_trees.map(lambda tree: json.dumps(tree).encode())
    | st.text(alphabet='[]{}",:\\ud8e9', max_size=200).map(str.encode)
)
@settings(max_examples=200, derandomize=True, database=None)
def test_any_bytes_are_answered(body: bytes) -> None:
    status, content = post(body)
    if status == 200:
        ScoreAnswer.model_validate_json(content)
    else:
        assert status in (409, 413, 422)
        Problem.model_validate_json(content)
