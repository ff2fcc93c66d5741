"""Real Ray on one node, on a host of its own (network, processes, disk)."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.calling_model import ADD, NUMBERS, write_calling_model
from tests.cluster.hosts import Host, Network, why_impossible
from tests.cluster.inputs import write_inputs
from tests.cluster.ray_hosts import RAY, ROOT, VARIABLES, wait_for
from tests.e2e.runs import rows
from tests.launch.services import STAND_IN

HAS_RAY = importlib.util.find_spec("ray") is not None
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_RAY, reason="Ray is optional: pip install 'trimaran[ray]'"),
    pytest.mark.skipif(bool(why_impossible()), reason=why_impossible()),
]
NPUS = '{"NPU": 4, "trimaran_rollout": 1}'
SUPERVISE = """
import json, sys
from trimaran.run.ray.cluster import Cluster, Where
from commands.launch.ray.supervisor import Supervisor
cluster = Cluster("auto")
cluster.connect()
order = {"name": "rollout-0", "arguments": sys.argv[1:], "folder": "/srv/run", "device": "npu",
    "files": {"token": "s3cret-s3cret-s3cret"}, "variables": {"PLUGIN": "s3cret-s3cret-s3cret"}}
actor = cluster.make(Supervisor, "run/rollout-0", Where({"NPU": 2}), 60.0)
cluster.call(actor, "start", order).result(60)
print(json.dumps(cluster.call(actor, "report", 0).result(60)["pid"]))
"""

GROUPS = """
import json, sys
from concurrent.futures import TimeoutError
from trimaran.run.ray.cluster import Cluster, Where
from commands.launch.ray.supervisor import Supervisor
cluster = Cluster("auto")
cluster.connect()

def parts(replica, devices):
    bundle = {"NPU": devices, "node:" + sys.argv[1]: 0.001}
    group = cluster.reserve(f"run/{replica}/group", [bundle] * 2, {}, True)
    places = [Where({"NPU": devices}, group=group, bundle=part) for part in (0, 1)]
    return [make(f"run/{replica}/{where.bundle}", where) for where in places]

def make(name, where):
    return cluster.make(Supervisor, name, where, 60.0)

def has_place(actor, seconds):
    try:
        return cluster.node_of(actor).result(seconds) == cluster.own_node
    except TimeoutError:
        return False

first = parts("rollout-2", 1)
seen = [[has_place(one, 60) for one in first]]
second = parts("rollout-3", 2)
seen.append([has_place(one, 2) for one in second])
alone = make("run/rollout-4", Where({"NPU": 2}))
seen.append(has_place(alone, 60))
cluster.kill(alone)
cluster.release("run/rollout-2/")
seen.append([has_place(one, 60) for one in second])
cluster.release("run/rollout-3/")
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Generator[Host]:
    with Network(tmp_path_factory.mktemp("ray")) as network:
        host = network.host("alone")
        host.run(
            *(sys.executable, *RAY, "start", "--head", "--num-cpus=4", f"--resources={NPUS}"),
            *(f"--node-ip-address={host.address}", "--temp-dir=/srv/ray"),
            *("--object-store-memory=100000000", "--include-dashboard=false"),
            variables=VARIABLES,
        )
        yield host


def test_what_holds_wherever_processes_are_started_holds_on_ray(node: Host) -> None:
    tests = ROOT / "tests" / "cluster" / "contract.py"
    words = ("-m", "pytest", tests, "-q", "-x", "--basetemp=/srv/tests", "-p", "no:cacheprovider")
    printed = node.run(sys.executable, *words, variables=VARIABLES, seconds=280)
    assert " passed" in printed and "failed" not in printed, printed


def test_a_killed_actor_takes_all_along_and_secrets_lie_nowhere_but_with_the_service(
    node: Host,
) -> None:
    program = (sys.executable, "-c", SUPERVISE, STAND_IN, "engine", "/srv/run/rollout-0")
    pid = json.loads(node.run(*program, variables=VARIABLES).splitlines()[-1])
    started = node.folder / "run" / "rollout-0-child"
    wait_for(started.exists, "what the service starts")
    environ = node.run("cat", f"/proc/{pid}/environ").split("\0")
    [devices] = [word for word in environ if word.startswith("ASCEND_RT_VISIBLE_DEVICES=")]
    assert sorted(map(int, devices.partition("=")[2].split(","))) == [
        int(name) for name in devices.partition("=")[2].split(",")
    ]
    secret = node.run("sh", "-c", "grep -rl s3cret-s3cret-s3cret /srv/ray /srv/run || true")
    assert secret.split() == ["/srv/run/token"]
    parent = node.run("ps", "-o", "ppid=", "-p", str(pid)).strip()
    node.kill_process(signal.SIGKILL, int(parent))
    left = (str(pid), started.read_text())
    wait_for(lambda: not node.processes("stand_in.py", "engine"), f"{left} to end")
    wait_for(lambda: int(left[1]) not in node.processes(), "its child to end")


def test_a_replicas_group_has_all_its_places_or_none(node: Host) -> None:
    """Of four devices one replica has two. Another one wants four, and holds none while it waits."""
    printed = node.run(sys.executable, "-c", GROUPS, node.address, variables=VARIABLES)
    seen = json.loads(printed.splitlines()[-1])
    assert seen == [[True, True], [False, False], True, [True, True]]


def test_a_replica_of_two_processes_and_an_environment_train(node: Host, tmp_path: Path) -> None:
    """Both of its places are on this node. The policy calls a tool."""
    config = write_inputs(tmp_path / "inputs")
    model = write_calling_model(tmp_path / "calling", "add", NUMBERS)
    (tmp_path / "tools.py").write_text(ADD)
    named = f"{tmp_path / 'tools.py'}:add"
    words = ("train", config, "--launcher", "ray", "--network", "trusted", "--allow", named)
    where = (f"network.subnet={node.subnet}", "run.folder=/srv/runs", "trainer.device=cpu")
    what = ("run.steps=2", f"model.path={model}", f"environment.tools=['{named}']")
    bounds = ("environment.max_turns=3", "environment.max_tokens=300")
    engine = ("engine=vllm", "device=cpu", "kv_cache_gib=0.05", "replicas=1")
    hosts = ("tensor_parallel=2", "hosts=2")
    replica = [f"rollout.{setting}" for setting in (*engine, *hosts)]
    command = (sys.executable, "-m", "commands.cli", *words, *where, *what, *bounds, *replica)
    printed = node.run(*command, variables=VARIABLES, seconds=500)
    assert "2 steps in" in printed, printed
    [run] = node.folder.glob("runs/*")
    assert "vllm's workers on host 1 of 2 are up" in (run / "logs" / "follower-0.log").read_text()
    for row in rows(run, "step"):
        assert row["environment/calls/mean"] > 1
        assert row["environment/calls/failed/share"] == 0
    left = "import ray; ray.init('auto'); from ray.util import placement_group_table as table;"
    program = f"{left} print([g['name'] for g in table().values() if g['state'] != 'REMOVED'])"
    printed = node.run(sys.executable, "-c", program, variables=VARIABLES)
    assert printed.splitlines()[-1] == "[]"


def test_a_raylet_that_is_killed_takes_its_actors_and_their_services_along(node: Host) -> None:
    program = (sys.executable, "-c", SUPERVISE.replace("run/rollout-0", "run/rollout-1"))
    node.run(*program, STAND_IN, "engine", "/srv/run/rollout-1", variables=VARIABLES)
    wait_for(lambda: node.processes("stand_in.py", "engine"), "the service")
    child = int((node.folder / "run" / "rollout-1-child").read_text())
    assert node.kill(signal.SIGKILL, "raylet/raylet")
    wait_for(lambda: not node.processes("ray::Supervisor"), "the actor to end")
    wait_for(lambda: not node.processes("stand_in.py", "engine"), "the service to end")
    wait_for(lambda: child not in node.processes(), "what it had started to end")
