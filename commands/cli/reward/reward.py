"""`trimaran reward`: do plugins keep the contract, and the contract as a schema."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from commands.cli.plugins.checking import check_plugin
from services.reward.outcome import Outcome
from services.reward.plugins.checking.check import run_checks
from services.reward.plugins.contract import CONTRACT, Info
from services.reward.plugins.serving.app import make_app
from trimaran.rewards import Sample


def check(options: argparse.Namespace) -> int:
    """Returns 1 when a check fails."""
    return check_plugin(options, run_checks)


def print_schema(_: argparse.Namespace) -> int:
    async def no_judge(_: Sequence[Sample]) -> Sequence[Outcome]:
        return ()

    app = make_app(no_judge, Info(contract=CONTRACT, name="schema"), token="any")
    print(json.dumps(app.openapi(), indent=2))
    return 0
