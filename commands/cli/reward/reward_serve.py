"""`trimaran reward serve`: a reward function as an HTTP server."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from commands.cli.plugins.arguments import parse_options
from commands.cli.plugins.serving import PluginServer
from commands.cli.reward.reward_arguments import check_numbers, find_function
from services.reward.plugins.contract import CONTRACT, Info
from services.reward.plugins.serving.app import make_app
from services.reward.terms import FunctionSpec
from services.reward.workers.pool import WorkerPool


def serve(arguments: argparse.Namespace) -> int:
    """Until SIGTERM or SIGINT. Raises InputError for what cannot be served."""
    check_numbers(arguments)
    options = parse_options(arguments.option)
    spec, minimum, maximum = find_function(
        arguments.function, options, arguments.minimum, arguments.maximum
    )
    info = Info(
        contract=CONTRACT,
        name=arguments.function,
        minimum=minimum,
        maximum=maximum,
        max_samples=arguments.max_samples,
        deterministic=not arguments.nondeterministic,
    )
    with PluginServer.claim(arguments, "reward-plugin", "decide what is trained") as server:
        pool = WorkerPool(arguments.workers, arguments.timeout, arguments.memory_mib)
        app = make_app(partial(pool.judge, spec), info, server.token, options)
        return asyncio.run(server.serve(app, info.name, _loaded(pool, spec)))


@asynccontextmanager
async def _loaded(pool: WorkerPool, spec: FunctionSpec) -> AsyncIterator[None]:
    async with pool:
        await pool.load([spec])
        yield
