"""`check`: does a plugin keep its contract."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import ssl
from collections.abc import Awaitable, Callable, Sequence

from commands.cli.plugins.arguments import read_token
from trimaran.errors import InputError
from trimaran.plugins.checking import CheckResult, PluginAccess
from trimaran.trust.allowed import origin_of

Show = Callable[[CheckResult], None]


def check_plugin(
    options: argparse.Namespace,
    run_checks: Callable[[PluginAccess, Show | None], Awaitable[Sequence[CheckResult]]],
) -> int:
    """Prints a line a check; 1 when one fails."""
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
    access = PluginAccess(url=url, token=token, trust=trust, timeout=timeout)

    async def run() -> Sequence[CheckResult]:
        return await run_checks(access, None if options.json else _show)

    findings = asyncio.run(run())
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


def _show(finding: CheckResult) -> None:
    print(f"{finding.verdict:<8} {finding.check:<26} {finding.detail}", flush=True)
