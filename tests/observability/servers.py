"""A real Prometheus for tests."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.observability.rules import PROMETHEUS, RULES
from trimaran.run.network import LOOPBACK

SECONDS = 120.0


class Prometheus:
    """Example: Prometheus("127.0.0.1:9090").ask("up")"""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=f"http://{address}/api/v1", timeout=10)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The vector that an instant query gives."""
        answer = self._client.get("/query", params={"query": query})
        assert answer.status_code == 200, f"{query}: {answer.text}"
        return answer.json()["data"]["result"]

    def alerts(self) -> dict[str, str]:
        """Name -> state, of those that are pending or fire."""
        found = self._client.get("/alerts").json()["data"]["alerts"]
        return {alert["labels"]["alertname"]: alert["state"] for alert in found}

    def rules(self) -> list[dict[str, Any]]:
        groups = self._client.get("/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def prometheus(folder: Path, manager: str) -> Generator[Prometheus]:
    """Scrapes the manager at this HTTP address, and its runs, with our own configuration: every
    second, and alerts wait two seconds instead of minutes."""
    assert PROMETHEUS
    tree = yaml.safe_load((RULES.parent / "prometheus.yaml").read_text())
    tree["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    own, of_runs = tree["scrape_configs"]
    own["static_configs"][0]["targets"] = [manager]
    of_runs["http_sd_configs"][0] = {
        "url": f"http://{manager}/metrics/targets",
        "refresh_interval": "1s",
    }
    folder.mkdir()
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(tree))
    (folder / "rules.yaml").write_text(re.sub(r"for: \d+m", "for: 2s", RULES.read_text()))
    address = LOOPBACK.free_address()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(PROMETHEUS, f"--config.file={folder}/prometheus.yaml"),
                *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while not _is_ready(address):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "prometheus does not get ready"
            time.sleep(0.1)
        yield Prometheus(address)
    finally:
        process.kill()
        process.wait()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready").status_code == 200
    except httpx.TransportError:
        return False
