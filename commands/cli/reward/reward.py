"""`trimaran reward`: do plugins keep the contract, and the contract as a schema."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import ssl
from collections.abc import Sequence

from services.reward.outcome import Outcome
from services.reward.plugins.checking.check import CheckResult, run_checks
from services.reward.plugins.contract import CONTRACT, Info
from services.reward.plugins.serving.app import make_app
from trimaran.errors import InputError
from trimaran.rewards import Sample
from trimaran.trust.allowed import origin_of


def check(options: argparse.Namespace) -> int:
    """Returns 1 when a check fails."""
    url, ca_file, timeout = options.url, options.ca_file, options.timeout
    origin_of(url, "URL")
    if timeout <= 0 or not math.isfinite(timeout):
        raise InputError(f"--timeout {timeout:g}: must be more than 0 seconds")
    trust = None
    if ca_file is not None:
        try:
            trust = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"--ca-file {ca_file}: {error}; give a PEM file") from None
    token = read_token(options.token_variable)
    show = None if options.json else _show
    findings = asyncio.run(run_checks(url, token=token, trust=trust, timeout=timeout, show=show))
    counts = {
        verdict: sum(finding.verdict == verdict for finding in findings)
        for verdict in ("pass", "fail", "skipped")
    }
    if options.json:
        lines = [{"check": f.check, "verdict": f.verdict, "detail": f.detail} for f in findings]
        print(json.dumps({"url": url, "checks": lines, **counts}, indent=2))
    else:
        print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skipped']} skipped")
    return 1 if counts["fail"] else 0


def print_schema(_: argparse.Namespace) -> int:
    async def no_judge(_: Sequence[Sample]) -> Sequence[Outcome]:
        return ()

    app = make_app(no_judge, Info(contract=CONTRACT, name="schema"), token="any")
    print(json.dumps(app.openapi(), indent=2))
    return 0


def read_token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not (token.isascii() and token.isprintable() and token) or " " in token:
        raise InputError(
            f"--token-variable {variable}: that environment variable holds no token"
            " (printable ASCII without blanks); set it first"
        )
    return token


def _show(finding: CheckResult) -> None:
    print(f"{finding.verdict:<8} {finding.check:<26} {finding.detail}", flush=True)
