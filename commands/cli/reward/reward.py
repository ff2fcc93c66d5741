"""`trimaran reward check`: do plugins keep the contract."""

from __future__ import annotations

import argparse

from commands.cli.plugins.checking import check_plugin
from services.reward.plugins.checking.check import run_checks


def check(options: argparse.Namespace) -> int:
    """Returns 1 when a check fails."""
    return check_plugin(options, run_checks)
