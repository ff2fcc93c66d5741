from __future__ import annotations

import asyncio

import pytest

from tests.cli.fake_controller import FakeController, serve
from trimaran.cli.main import main
from trimaran.launch.endpoints import free_address
from trimaran.runs import Goal


def test_cancel_reaches_the_controller(capsys: pytest.CaptureFixture[str]) -> None:
    controller, address = FakeController(step=3), free_address(set())

    async def run() -> int:
        server = await serve(controller, address)
        try:
            return await asyncio.to_thread(main, ["cancel", address])
        finally:
            await server.stop()

    assert asyncio.run(run()) == 0
    assert controller.goals == [Goal.CANCEL]
    assert capsys.readouterr().out == f"{address}: ends after step 4\n"


def test_where_no_controller_is_the_message_says_how_to_find_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = free_address(set())
    assert main(["cancel", address]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"error: {address}: no controller answers there")
