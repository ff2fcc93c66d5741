"""Each alert fires when it should and is silent when it should be, as promtool computes it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.observability.rules import PROMTOOL, ROOT, RULES, WHY_SKIPPED, alerts

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason=WHY_SKIPPED)
RUN = 'run="a", owner="ada", job="trimaran"'
CONTROLLER = f'{{{RUN}, process="controller"}}'
SYNC = f'{{{RUN}, process="weight-sync"}}'
TRAINER = f'{{{RUN}, process="trainer-0"}}'
PROGRESS = f"trimaran_controller_progress_time_seconds{CONTROLLER}"
STEP_SECONDS = f"trimaran_step_controller_step_seconds{CONTROLLER}"
HELD = f"trimaran_controller_held{CONTROLLER}"
ROUTABLE = f"trimaran_weight_sync_routable_replicas{SYNC}"
LIVE = f"trimaran_weight_sync_live_step{SYNC}"
UNROUTABLE = f'trimaran_weight_sync_unroutable_replicas{{{RUN}, process="weight-sync", state="%s"}}'
TRAINED = f"trimaran_trainer_step{TRAINER}"
LAG = f"trimaran_step_rollout_completion_lag_mean{CONTROLLER}"
FAULTED = f"trimaran_step_reward_completion_faulted_share{CONTROLLER}"
PUBLISHED = (
    f'trimaran_rpc_calls_total{{{RUN}, process="weight-sync",'
    ' method="WeightSyncService/PublishVersion", code="%s"}'
)
STORE = f'trimaran_store_duration_seconds_bucket{{{RUN}, process="controller", le="%s"}}'
WAIT = 'trimaran_manager_queue_wait_seconds{job="trimaran-manager"}'
DISK = f"trimaran_controller_disk_free_bytes{CONTROLLER}"
BORN = f"process_start_time_seconds{TRAINER}"
FAILED = 'trimaran_manager_runs{job="trimaran-manager", state="failed"}'


class Case(NamedTuple):
    alert: str
    fires: bool
    series: dict[str, str]
    """Values a minute, as promtool writes them."""
    at: str = "2h"


CASES = (
    Case("NoStep", True, {PROGRESS: "0x200", STEP_SECONDS: "60x200"}, at="20m"),
    Case("NoStep", False, {PROGRESS: "0x200", STEP_SECONDS: "60x200"}, at="14m"),
    Case("NoStep", False, {PROGRESS: "0x200", STEP_SECONDS: "3600x200"}),
    Case("NoStep", False, {PROGRESS: "0+60x200", STEP_SECONDS: "60x200"}),
    Case("NoStep", False, {PROGRESS: "0x200", STEP_SECONDS: "60x200", HELD: "1x200"}),
    Case("NoStep", True, {PROGRESS: "0x200"}),
    Case("NoStep", False, {PROGRESS: "0x200"}, at="50m"),
    Case("NoReplica", True, {ROUTABLE: "2x10 0x200", LIVE: "7x200"}, at="14m"),
    Case("NoReplica", False, {ROUTABLE: "2x10 0x200", LIVE: "7x200"}, at="12m"),
    Case("NoReplica", False, {ROUTABLE: "0x200"}),  # nothing was published yet
    Case("NoReplica", False, {ROUTABLE: "1x200", LIVE: "7x200"}),
    Case("ReplicasUnrouted", True, {UNROUTABLE % "faulty": "1x200"}),
    Case("ReplicasUnrouted", False, {UNROUTABLE % "faulty": "1 1 0x200"}),
    Case("ReplicasUnrouted", False, {UNROUTABLE % "behind": "1x200"}),
    Case("WeightsBehind", True, {TRAINED: "8x200", LIVE: "7x200"}),
    Case("WeightsBehind", False, {TRAINED: "8x200", LIVE: "7x10 8x200"}),
    Case("TokensOld", True, {LAG: "5x200"}),
    Case("TokensOld", False, {LAG: "4x200"}),
    Case("FaultedAnswers", True, {FAULTED: "0.06x200"}),
    Case("FaultedAnswers", False, {FAULTED: "0.05x200"}),
    Case("PublishFails", True, {PUBLISHED % "UNAVAILABLE": "_x110 1x20"}),  # its first
    Case("PublishFails", True, {PUBLISHED % "UNAVAILABLE": "1x110 2x20"}),
    Case("PublishFails", False, {PUBLISHED % "UNAVAILABLE": "1x200"}),
    Case("PublishFails", False, {PUBLISHED % "OK": "1+1x200"}),
    Case("PublishFails", False, {PUBLISHED % "CANCELLED": "1+1x200"}),
    Case(
        "StoreSlow", True, {STORE % "1": "0x200", STORE % "3": "0+9x200", STORE % "+Inf": "0+9x200"}
    ),
    Case("StoreSlow", False, {STORE % "0.1": "0+9x200", STORE % "+Inf": "0+9x200"}),
    Case("QueueWaits", True, {WAIT: "0+60x200"}),
    Case("QueueWaits", False, {WAIT: "0+60x50 0x100"}),
    Case("Held", True, {HELD: "1x200"}),
    Case("Held", False, {HELD: "1 0x200"}),
    Case("DiskFull", True, {DISK: "4e9x200"}),
    Case("DiskFull", True, {DISK: "300e9-1e9x200"}),  # four hours are 240 GB
    Case("DiskFull", False, {DISK: "400e9-0.1e9x200"}),
    Case("Restarts", True, {BORN: "1x95 2x5 3x5 4x20"}),
    Case("Restarts", False, {BORN: "1x95 2x5 3x20"}),
    Case("RunFailed", True, {FAILED: "1x110 2x20"}),
    Case("RunFailed", False, {FAILED: "2x200"}),
    Case("ProcessSilent", True, {f"up{TRAINER}": "0x200"}),
    Case("ProcessSilent", False, {f"up{TRAINER}": "1x200"}),
    Case("ManagerDown", True, {'up{job="trimaran-manager"}': "0x200"}),
    Case("ManagerDown", False, {'up{job="trimaran-manager"}': "1x200"}),
)


def written(case: Case) -> dict[str, Any]:
    """As promtool takes it."""
    name = f"Trimaran{case.alert}"
    question = {
        "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
        "eval_time": case.at,
        "exp_samples": [{"labels": "{}", "value": 1}] if case.fires else [],
    }
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    return {
        "name": str(case),
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [question],
    }


@needs_promtool
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    assert PROMTOOL
    tests = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": list(map(written, CASES)),
    }
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump(tests))
    command = [PROMTOOL, "test", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_to_fire_and_to_be_silent() -> None:
    names = {alert["alert"].removeprefix("Trimaran") for alert in alerts()}
    for fires in (True, False):
        assert {case.alert for case in CASES if case.fires is fires} == names


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for alert in alerts():
        assert set(alert["annotations"]) == {"summary", "meaning", "action", "runbook"}
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert (ROOT / alert["annotations"]["runbook"].partition("#")[0]).is_file()


@needs_promtool
def test_promtool_accepts_the_configuration() -> None:
    assert PROMTOOL
    command = [PROMTOOL, "check", "config", str(RULES.parent / "prometheus.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
