"""Whatever is sent, the manager answers as its OpenAPI says, and never with a 500."""

from __future__ import annotations

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

from services.manager.http.app import make_app
from tests.clients.fake_runs import FakeRuns
from trimaran.run.runs import RunState
from trimaran.telemetry.exposition import Exposition

pytestmark = pytest.mark.e2e  # a sweep

runs = FakeRuns()
for number, state in enumerate(RunState):
    runs.add(f"run-{number}", state)
app = make_app(runs, lambda method, token: None, Exposition(), hosts=frozenset())
refusals = {"checks": {"negative_data_rejection": {"expected-statuses": [401, 404, 405, 413, 422]}}}
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
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list[Any](HealthCheck),
)
def test_the_manager_is_as_its_schema_says(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)
