"""Two replicas on one host load each version from one copy of it."""

import re
import signal
from collections import Counter

import psutil
import pytest

from tests.e2e import runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MAPPED = re.compile(
    r"^\S+ \S+ \S+ \S+ (?P<number>\d+) +/memfd:trimaran-weights.*?"
    r"^Size: +(?P<size>\d+) kB.*?^Pss: +(?P<pss>\d+) kB",
    re.MULTILINE | re.DOTALL,
)


def memories(process: psutil.Process) -> tuple[dict[int, int], Counter[int]]:
    """By its file's number, the size of each memory with weights that the process maps, and how much
    of it is the process's own part (Pss). KiB."""
    with open(f"/proc/{process.pid}/smaps") as file:
        found = [
            {k: int(v) for k, v in m.groupdict().items()} for m in MAPPED.finditer(file.read())
        ]
    shares: Counter[int] = Counter()
    for one in found:
        shares[one["number"]] += one["pss"]
    return {one["number"]: one["size"] for one in found}, shares


@pytest.mark.parametrize(("transport", "num_copies"), [("auto", 1), ("relay", 2)])
def test_two_replicas_have_one_copy(write_run, tmp_path, transport, num_copies):
    path = write_run(
        run={"steps": 500}, rollout={"replicas": 2}, weight_sync={"transport": transport}
    )
    process = runs.start("train", path, run_folder_parent=tmp_path)
    runs.wait_for_steps(process, tmp_path / "runs", 3)
    trainer, *replicas = (
        runs.processes(tmp_path, "serve", *words)
        for words in (("trainer",), ("rollout", "--index", "0"), ("rollout", "--index", "1"))
    )
    [(sizes, shares), (other_sizes, other_shares)] = (memories(one) for [one] in replicas)
    snapshots = {number for one in trainer for number in memories(one)[0]}
    process.send_signal(signal.SIGINT)
    runs.finish(process)

    shadows = (sizes | other_sizes).keys() - snapshots
    size = max((sizes | other_sizes)[number] for number in shadows)
    mapped = sum(shares[number] + other_shares[number] for number in shadows)
    # The one that keeps the live version for joiners has a second one.
    assert len(shadows) == num_copies + 1
    assert mapped == pytest.approx((num_copies + 1) * size, rel=0.05)
    steps = runs.rows(runs.only_run(tmp_path / "runs"), "step")
    one_takes_it = {row["weight_sync/shared"] for row in steps} == {1.0}
    assert one_takes_it == (num_copies == 1)
