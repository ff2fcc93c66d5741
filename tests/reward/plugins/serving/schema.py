"""Prints the contract of reward plugins as OpenAPI, for docs/reward-plugin-v1.json."""

from __future__ import annotations

import json
from collections.abc import Sequence

from services.reward.outcome import Outcome
from services.reward.plugins.contract import CONTRACT, Info
from services.reward.plugins.serving.app import make_app
from trimaran.rewards import Sample


def schema() -> str:
    async def no_judge(_: Sequence[Sample]) -> Sequence[Outcome]:
        return ()

    app = make_app(no_judge, Info(contract=CONTRACT, name="schema"), token="any")
    return json.dumps(app.openapi(), indent=2)


if __name__ == "__main__":
    print(schema())
