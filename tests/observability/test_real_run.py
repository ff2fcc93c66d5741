"""A real Prometheus with our rules scrapes a real run: what rules and dashboard ask for is there."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import runs
from tests.e2e.conftest import tiny_model, write_run
from tests.e2e.test_managed_runs import tree_of
from tests.observability.rules import PROMETHEUS, ROOT, WHY_SKIPPED, rules
from tests.observability.servers import SECONDS, Prometheus, prometheus
from trimaran.clients import RunClient

__all__ = ["tiny_model", "write_run"]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PROMETHEUS is None, reason=WHY_SKIPPED),
]
DASHBOARD = ROOT / "deploy/grafana/trimaran.json"
SERIES = re.compile(r"\b(?:trimaran[a-z0-9_:]+|process_[a-z_]+|up)\b(?!\s*[=!]~?\")")


@pytest.fixture(autouse=True)
def ended(tmp_path: Path) -> Generator[None]:
    yield
    for process in runs.processes(tmp_path, "launch"):
        process.kill()


def queries() -> Iterator[tuple[str, str]]:
    """Each panel's title and query, as Grafana would ask it for all runs."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$run", ".+").replace("$__rate_interval", "1m")
            yield panel["title"], query


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.5)


def submit(path: Path, address: str) -> str:
    config = tree_of(path, run={"steps": 5000})
    with RunClient(address) as client:
        run_id = client.create_run(config, request_id="1").run_id
        wait_for(lambda: client.get_run(run_id).step >= 3, "three steps")
    return run_id


def test_rules_and_dashboard_find_their_series_and_an_alert_fires(
    write_run: Any, tmp_path: Path
) -> None:
    path = write_run(weight_sync={"heartbeat_timeout": 2.0})
    process = runs.start(
        *("up", "--folder", tmp_path / "managed"),
        *("--address", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        run_folder_parent=tmp_path,
    )
    lines = runs.listen(process)
    runs.wait_for(lambda: any("listens on" in line for line in lines), process, "its address")
    [line] = [line for line in lines if "listens on" in line]
    address, http = re.findall(r"127\.0\.0\.1:\d+", line)
    try:
        run_id = submit(path, address)
        with prometheus(tmp_path / "prometheus", http) as server:
            labels = see_targets(server, run_id)
            assert labels == {
                **{"controller": ("controller", "0"), "reward": ("reward", "0")},
                **{"weight-sync": ("weight-sync", "0"), "trainer-0": ("trainer", "0")},
                "rollout-0": ("rollout", "0"),
            }
            see_every_series(server)
            until_answered(server, {f"{title}: {query}": query for title, query in queries()})
            see_an_alert(server, tmp_path)
        with RunClient(address) as client:
            client.cancel_run(run_id)
            wait_for(lambda: client.get_run(run_id).state.has_ended, "the run's end")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert runs.survivors(tmp_path) == []


def see_targets(server: Prometheus, run_id: str) -> dict[str, tuple[str, str]]:
    """Process -> kind and index."""
    wait_for(lambda: len(server.ask(f'up{{run="{run_id}"}} == 1')) == 5, "every process")
    found = [one["metric"] for one in server.ask(f'up{{run="{run_id}"}}')]
    assert {labels["owner"] for labels in found} == {"local"}
    return {labels["process"]: (labels["kind"], labels["index"]) for labels in found}


def see_every_series(server: Prometheus) -> None:
    asked = " ".join([rule["expr"] for rule in rules()] + [query for _, query in queries()])
    names = set(SERIES.findall(asked))
    assert {"trimaran:store_latency:p99_seconds", "process_start_time_seconds", "up"} < names
    until_answered(server, {name: f"count({name})" for name in names})
    for rule in server.rules():
        assert rule["health"] == "ok", rule


def until_answered(server: Prometheus, missing: dict[str, str]) -> None:
    """Queries by what they are for."""
    deadline = time.monotonic() + SECONDS
    while missing := {what: query for what, query in missing.items() if not server.ask(query)}:
        assert time.monotonic() < deadline, f"no data: {missing}"
        time.sleep(0.5)


def see_an_alert(server: Prometheus, tmp_path: Path) -> None:
    """Every replica is frozen, and goes on later."""
    assert "TrimaranNoReplica" not in server.alerts()
    replicas = runs.processes(tmp_path, "serve", "rollout")
    assert replicas
    for replica in replicas:
        replica.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: server.alerts().get("TrimaranNoReplica") == "firing", "the alert")
    finally:
        for replica in replicas:
            replica.send_signal(signal.SIGCONT)
    wait_for(lambda: "TrimaranNoReplica" not in server.alerts(), "its end")
