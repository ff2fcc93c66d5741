"""Who has changed a run stands in the log and in the run's events, whichever way the call came."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import yaml

from services.manager.clients_file import make_client
from tests.manager.fakes import managing, specification, until
from trimaran import AsyncRunClient
from trimaran.errors import ForbiddenError
from trimaran.run.runs import EventKind, RunState

POOLS = {"gpu": {"device": "cuda", "devices": [0, 1]}}
WHO = (("anna", "a", "submitter"), ("bob", "b", "submitter"), ("vera", "a", "viewer"))


def lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


async def test_each_changing_call_has_a_line_and_its_event_names_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = {who[0]: make_client(*who) for who in WHO}
    path = tmp_path / "clients.yaml"
    path.write_text("\n".join(line for _, line in made.values()))
    path.chmod(0o600)
    async with (
        managing(tmp_path / "runs", clients=path, pools=POOLS) as served,
        AsyncRunClient(served.address, token=made["anna"][0]) as anna,
        AsyncRunClient(served.address, token=made["bob"][0]) as bob,
        AsyncRunClient(served.address, token=made["vera"][0]) as vera,
        httpx.AsyncClient(base_url=f"http://{served.http_address}/v1/runs") as http,
    ):
        tree = yaml.safe_load(specification(tmp_path))
        other = (await anna.create_run(tree)).run_id
        await until(lambda: served.manager.records.get(other).state is RunState.STARTING)
        run_id = (await anna.create_run(tree)).run_id  # it waits for the other's devices
        created = lines(caplog, "trimaran.audit")[-1]
        assert created == f"client anna, owner a: CreateRun {run_id!r}: OK"
        caplog.clear()
        with pytest.raises(ForbiddenError):
            await bob.pause_run(run_id)
        with pytest.raises(ForbiddenError):
            await vera.cancel_run(run_id)
        refused = await http.post(f"/{run_id}/cancel", headers={"Authorization": "Bearer x"})
        assert refused.status_code == 401
        head = {"Authorization": f"Bearer {made['anna'][0]}"}
        scale = {"min_replicas": 1, "max_replicas": 2}
        assert (await http.post(f"/{run_id}/scale", json=scale, headers=head)).status_code == 200
        assert (await http.post("/a%0Ab/pause", headers=head)).status_code == 404
        await anna.pause_run(run_id)
        await http.post(f"/{run_id}/cancel", headers=head)
        told = [event async for event in anna.watch_run(run_id)]
        await http.delete(f"/{run_id}", headers=head)
        run = f"{run_id!r}"
        assert lines(caplog, "trimaran.audit") == [
            f"client bob, owner b: PauseRun {run}: PERMISSION_DENIED",
            "client vera, owner a: CancelRun -: PERMISSION_DENIED",
            "client -, owner -: CancelRun -: UNAUTHENTICATED",
            f"client anna, owner a: ScaleRun {run}: OK",
            "client anna, owner a: PauseRun 'a\\nb': NOT_FOUND",
            f"client anna, owner a: PauseRun {run}: OK",
            f"client anna, owner a: CancelRun {run}: OK",
            f"client anna, owner a: DeleteRun {run}: OK",
        ]
        words = [(event.kind, event.run.state.value, event.text) for event in told]
        assert words[0] == (EventKind.STATE, "queued", "by anna")
        assert "scaled to 1:2 by anna" in [text for _, _, text in words]
        assert words[-1] == (EventKind.FINISHED, "cancelled", "by anna")
        assert (EventKind.STATE, "paused", "by anna") in words
        assert lines(caplog, "services.manager.records") == [
            f"run {run_id}: paused; was queued; by anna",
            f"run {run_id}: cancelled; was paused; by anna",
        ]
