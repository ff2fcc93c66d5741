"""Which suite a test is in, and the program that runs the suites: `python -m tests.suite test`.

A test is quick, or it carries the mark `e2e`. Of these, those that `CORE` names are in `make test`. Each of
the others is in one part of `make test-all`, by the longest line of `PARTS` that it begins with. So every
test is in exactly one of `unit`, `core` and the parts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.contract_run.results import commit, read_report

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "test-all.json"

CORE = (
    # Controller, trainer, rollout, reward and weight sync are killed and resume.
    "tests/e2e/test_revival.py::test_whatever_is_killed_comes_back_and_the_weights_are_those_of_an_undisturbed_run",
    # The environment service is killed and resumes; episodes train.
    "tests/e2e/test_episodes_run.py::test_an_environment_service_that_is_killed_or_frozen_comes_back[9]",
    # Over two hosts, by each transport; through the manager; on vLLM with images and experts.
    "tests/e2e/test_two_hosts.py::test_a_run_on_two_hosts_reaches_the_weights_of_one_on_loopback",
    "tests/e2e/test_managed_runs.py::test_two_runs_at_once_of_which_one_loses_its_launcher_and_one_is_paused",
    "tests/e2e/test_vision_run.py::test_a_model_with_experts_goes_the_whole_way",
    # What each engine, transport, layout and checkpoint promises, in one process or a few.
    "tests/rollout/test_service.py",
    "tests/cli/train/test_train.py",
    "tests/weights/transports/collective/test_collective.py",
    "tests/trainer/test_parity.py::test_logits_and_four_optimizer_steps_equal_plain_transformers[qwen3-tensor_parallel=2,data_parallel=2,sequence_parallel=True,distributed_optimizer=True]",
    "tests/trainer/test_parity.py::test_logits_and_four_optimizer_steps_equal_plain_transformers[qwen2-pipeline_parallel=2]",
    "tests/weights/memory/test_free_memory.py",
    "tests/weight_sync/test_relay.py",
    "tests/weights/transports/collective/test_rendezvous.py",
    "tests/weight_sync/test_coordinator.py",
    "tests/weight_sync/test_coordinator_faults.py",
    "tests/trainer/checkpoints/test_checkpoint.py",
    "tests/rollout/vllm/loading/test_in_place.py",
    "tests/rollout/test_pass_outputs.py",
    "tests/trimaran/ledger/payloads/test_payloads.py",
    "tests/controller/resuming/test_resume.py",
    "tests/controller/test_serve.py",
    "tests/reward/test_server.py",
    "tests/trimaran/test_imports.py",
    # The manager is killed and resumes.
    "tests/manager/test_processes.py::test_a_killed_manager_disturbs_no_run_and_the_next_one_finds_all",
)
"""The tests of `make test` that are e2e: whole names, or beginnings up to a `/`, `::` or `[`."""

PARTS = {
    "tests/": "kills",
    "tests/browser/": "browser",
    "tests/cli/files/test_data.py": "guides",
    "tests/cli/reward/test_reward.py": "guides",
    "tests/clients/": "guides",
    "tests/data/": "guides",
    "tests/doctor/": "installs",
    "tests/doctor/test_hosts.py": "cluster",
    "tests/e2e/test_disjoint_disks.py": "cluster",
    "tests/e2e/test_far_hosts.py": "cluster",
    "tests/e2e/test_gpu_run.py": "engines",
    "tests/e2e/test_guides.py": "guides",
    "tests/e2e/test_memory.py": "layouts",
    "tests/e2e/test_outside_package.py": "guides",
    "tests/e2e/test_replica_on_hosts.py": "cluster",
    "tests/e2e/test_reward_plugin.py": "guides",
    "tests/e2e/test_router_replay.py": "engines",
    "tests/e2e/test_shared_shadow.py": "engines",
    "tests/e2e/test_tools_run.py": "engines",
    "tests/e2e/test_two_hosts.py": "cluster",
    "tests/e2e/test_vision_run.py": "engines",
    "tests/e2e/test_vllm_run.py": "engines",
    "tests/extending/": "guides",
    "tests/faults/test_network.py": "cluster",
    "tests/faults/test_silent_host.py": "cluster",
    "tests/install/": "installs",
    "tests/launch/test_on_ray.py": "cluster",
    "tests/observability/": "guides",
    "tests/reward/": "guides",
    "tests/rollout/": "engines",
    "tests/trainer/": "layouts",
    "tests/trimaran/": "installs",
}
"""The part of the tests below a folder, or in a file."""

PART_NAMES = tuple(sorted(set(PARTS.values())))
TEST = ("lint", "unit", "core")
E2E_FOLDERS = ("tests/browser/", "tests/e2e/", "tests/faults/", "tests/install/", "tests/launch/")
"""All of their tests are e2e, marked or not."""
SELECTIONS = {
    "unit": ("-m", "not e2e", *(f"--ignore={folder}" for folder in E2E_FOLDERS)),
    "core": ("-m", "core", *CORE),  # each worker imports these files alone
}
"""How pytest finds a suite; a part by its mark."""
WORKERS = {
    "unit": ("-n", "3", "--dist", "worksteal"),
    "core": ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"),
}
TWO_WORKERS = ("-n", "2", "--dist", "loadfile")


def begins(test: str, name: str) -> bool:
    """Whether a test is the named one, one of its cases, or in the named file or folder."""
    return test.startswith(name) and (name.endswith("/") or test[len(name) :][:1] in ("", ":", "["))


def suite_of(test: str, is_e2e: bool) -> str:
    """`test`: as pytest names it, `tests/…/test_x.py::test_y[z]`."""
    if not is_e2e:
        return "unit"
    if any(begins(test, name) for name in CORE):
        return "core"
    return PARTS[max((name for name in PARTS if begins(test, name)), key=len)]


def place_of(test: str) -> int:
    """Where a test stands in `CORE`, which begins with the longest; others keep their order."""
    return next((number for number, name in enumerate(CORE) if begins(test, name)), len(CORE))


@dataclass(frozen=True, slots=True)
class Stage:
    passed: int
    failed: tuple[str, ...]
    skipped: int
    reasons: Counter[str]
    """Skipped tests by reason."""
    seconds: float
    code: int

    def __str__(self) -> str:
        return (
            f"{self.passed} passed, {len(self.failed)} failed, {self.skipped} skipped"
            f" in {self.seconds:.0f} s" + (f" (exit code {self.code})" if self.code else "")
        )


def run_tests(name: str) -> Stage:
    """One pytest for a suite; its output goes to the terminal."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trimaran-suite-") as folder:
        report = Path(folder, "report.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"--junitxml={report}",
            *SELECTIONS.get(name, ("-m", name)),
        ]
        code = subprocess.run([*command, *WORKERS.get(name, TWO_WORKERS)], cwd=ROOT).returncode
        text = report.read_text(encoding="utf-8") if report.exists() else "<testsuites/>"
    counts = read_report(text)
    skipped = ElementTree.fromstring(text).iter("skipped")
    reasons = Counter(one.get("message", "") for one in skipped)
    seconds = time.monotonic() - began
    return Stage(counts.passed, counts.failed, counts.skipped, reasons, seconds, code)


def run_stages(names: Sequence[str], is_recorded: bool) -> bool:
    """Whether all is well. Lint runs beside the tests: a type checker has one process."""
    reasons: Counter[str] = Counter()
    is_well = True
    lint, began = None, time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        if "lint" in names:
            print("lint: begins, beside the tests", flush=True)
            lint = subprocess.Popen(["make", "lint"], cwd=ROOT, stdout=said, stderr=said)
        for name in names:
            if name == "lint":
                continue
            print(f"{name}: begins", flush=True)
            stage = run_tests(name)
            print(f"{name}: {stage}", flush=True)
            is_well &= stage.code == 0
            reasons += stage.reasons
            if is_recorded:
                record(name, stage)
        if lint:
            is_well &= lint.wait() == 0
            said.seek(0)
            print(f"{said.read()}lint: exit code {lint.returncode}", flush=True)
    print(f"all of it: {time.monotonic() - began:.0f} s; {sum(reasons.values())} skipped")
    for reason, count in reasons.most_common():
        print(f"  {count:4} {reason}")
    print("passed" if is_well else "FAILED")
    return is_well


def record(name: str, stage: Stage, file: Path = RESULTS) -> None:
    """Replaces the suite's last figures; the others stay."""
    file.parent.mkdir(exist_ok=True)
    figures = json.loads(file.read_text()) if file.exists() else {}
    figures[name] = {
        "commit": commit(file),
        "date": datetime.now(UTC).date().isoformat(),
        "passed": stage.passed,
        "failed": stage.failed,
        "skipped": stage.skipped,
        "seconds": round(stage.seconds),
    }
    file.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description=__doc__)
    known = ("test", "all", *TEST, *PART_NAMES)
    parser.add_argument("names", nargs="+", choices=known, help="test is lint, unit and core")
    names: list[str] = []
    for name in parser.parse_args(None if arguments is None else list(arguments)).names:
        names += {"test": TEST, "all": (*TEST, *PART_NAMES)}.get(name, (name,))
    os.environ["OMP_NUM_THREADS"] = "1"
    return 0 if run_stages(names, is_recorded=bool(set(names) - set(TEST))) else 1


if __name__ == "__main__":
    sys.exit(main())
