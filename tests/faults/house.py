"""One run's processes: the controller, weight sync, trainer ranks and replicas, the last two behind
a door each. The reward service is here, in the driver."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.faults import children, processes
from tests.faults.processes import Child, Usage
from tests.faults.proxy import Door
from tests.faults.reward import make_reward
from trimaran.config import RunConfig, dump_config, parse_config
from trimaran.run.network import LOOPBACK
from trimaran.store.sqlite import SqliteStore
from trimaran.types import Replica
from trimaran.wire import rpc

CONTROLLER = "controller"
WEIGHT_SYNC = "weight-sync"
GROUPS_PER_STEP = 2
MAX_LAG = 1
"""So that groups wait, scored, while their proofs may still turn bad."""
GROUP_SIZE = 2
MAX_TOKENS = 32
START_SECONDS = 60.0
NUM_PROMPTS = 64
LONG_LIFE = 12
"""Faults."""
GROWTH_ALLOWED = 10
"""Descriptors or threads: less than one a fault. The medians count: a group that broke holds what it has
until its deadline, which is no leak."""
MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
"""5.4 MB in bf16: six buckets of the smallest size that there is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run of the driver varies between its parts."""

    engine: str
    """stand-in or vllm."""
    transport: str
    delta: bool
    num_senders: int
    num_replicas: int
    """Of which the last one is only there at times."""

    def __str__(self) -> str:
        delta = " with deltas" if self.delta else ""
        return f"{self.transport}{delta}, {self.num_senders} senders, {self.num_replicas} replicas"


STAND_IN_SETTINGS = [
    Setting("stand-in", "collective", False, 2, 4),
    Setting("stand-in", "auto", False, 2, 4),
    Setting("stand-in", "relay", True, 1, 4),
    Setting("stand-in", "collective", True, 2, 4),
    Setting("stand-in", "relay", False, 2, 4),
    Setting("stand-in", "collective", False, 1, 3),
    Setting("stand-in", "auto", True, 1, 3),
]
VLLM_SETTINGS = [
    Setting("vllm", "collective", False, 2, 3),
    Setting("vllm", "auto", False, 1, 3),
    Setting("vllm", "relay", True, 2, 3),
]


@dataclass(slots=True)
class House:
    folder: Path
    """Of this part: config.yaml, the run folder, logs, orders."""
    setting: Setting
    config: RunConfig
    doors: dict[str, Door]
    children: dict[str, Child] = field(default_factory=dict)
    reward: rpc.Server | None = None
    lives: dict[int, list[Usage]] = field(default_factory=dict)
    """By process id: what the process used after each fault that it lived through."""

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    @property
    def trainers(self) -> list[str]:
        return [f"trainer-{index}" for index in range(self.setting.num_senders)]

    @property
    def replicas(self) -> list[str]:
        return [f"rollout-{index}" for index in range(self.setting.num_replicas)]

    def replica(self, name: str) -> Replica:
        return Replica(name, self.config.endpoints.rollout[_index(name)])

    @property
    def alive(self) -> list[str]:
        """Replicas whose process runs."""
        return [name for name in self.replicas if self.is_alive(name)]

    def is_alive(self, name: str) -> bool:
        return name in self.children and self.children[name].alive

    def start(self, name: str, beside: bool = False) -> Child:
        """`beside` a former one that still runs, which the caller ends."""
        assert beside or not self.is_alive(name), f"{name} runs already"
        config, log = self.folder / "config.yaml", self.folder / f"{name}.log"
        if name == CONTROLLER:
            config = self.folder / "controller.yaml"
            child = processes.start(name, log, children.serve_controller, config, self.run_folder)
        elif name == WEIGHT_SYNC:
            child = processes.start(name, log, children.serve_weight_sync, config, self.run_folder)
        else:
            place = (config, self.run_folder, _index(name), self.doors[name].address)
            if name.startswith("trainer"):
                child = processes.start(name, log, children.serve_trainer, *place)
            else:
                stand_in = self.setting.engine == "stand-in"
                child = processes.start(name, log, children.serve_replica, *place, stand_in)
        self.children[name] = child
        return child

    async def start_trainers(self) -> None:
        """All ranks, as after a crash; from the newest checkpoint. Returns when they serve."""
        for name in self.trainers:
            if self.is_alive(name):
                self.children[name].kill()
        for name in self.trainers:
            self.start(name)
        await rpc.wait_until_serving(self.config.endpoints.trainer[0], START_SECONDS)

    def permit(self, step: int) -> None:
        """The controller may train up to this step."""
        children.write(children.gate_of(self.run_folder), str(step))

    async def open(self) -> None:
        """All but the controller."""
        for door in self.doors.values():
            await door.open()
        address = self.config.endpoints.reward
        assert address
        self.reward = make_reward(address)
        await self.reward.start()
        self.permit(0)
        self.start(WEIGHT_SYNC)
        for name in self.replicas[:-1]:
            self.start(name)
        await self.start_trainers()

    async def close(self) -> list[str]:
        """Ends everything as an operator would; the names of what had to be killed."""
        killed = []
        for name in [CONTROLLER, *self.replicas, *self.trainers, WEIGHT_SYNC]:
            if not self.is_alive(name):
                continue
            try:
                await self.children[name].end()
            except TimeoutError:
                self.children[name].kill()
                killed.append(name)
        for door in self.doors.values():
            await door.close()
        if self.reward is not None:
            await self.reward.stop()
        return killed

    def note_usage(self) -> None:
        for child in self.children.values():
            if child.alive:
                self.lives.setdefault(child.pid, []).append(child.usage())

    def grown(self) -> list[str]:
        """Processes whose use, as it is typical, was more in the second half of their life.

        Only of long lives: groups and connections come and go with the faults.
        """
        found: list[str] = []
        for name, child in self.children.items():
            life = self.lives.get(child.pid, [])
            if len(life) < LONG_LIFE:
                continue
            for what in Usage._fields:
                used = [getattr(usage, what) for usage in life]
                half = len(used) // 2
                if median(used[half:]) - median(used[:half]) > GROWTH_ALLOWED:
                    found.append(f"{self.folder.name} {name}: its {what} grew: {used}")
        return found


async def make_house(folder: Path, setting: Setting, seed: int, model: Path) -> House:
    folder.mkdir(parents=True)
    names = [f"trainer-{index}" for index in range(setting.num_senders)]
    names += [f"rollout-{index}" for index in range(setting.num_replicas)]
    doors = {name: Door(folder / "run" / f"{name}.relay") for name in names}
    config = parse_config(_configure(folder, setting, seed, model))
    (folder / "run").mkdir()
    await _take_over(folder / "run")
    (folder / "config.yaml").write_text(dump_config(config))
    # The last replica comes and goes: the controller does not wait for it.
    tree = config.model_dump(mode="json")
    tree["rollout"]["replicas"] -= 1
    tree["endpoints"]["rollout"].pop()
    (folder / "controller.yaml").write_text(dump_config(parse_config(tree)))
    row = {"prompt": "What is 1 + 2?", "answer": "3"}
    (folder / "train.jsonl").write_text((json.dumps(row) + "\n") * NUM_PROMPTS)
    return House(folder, setting, config, doors)


def _configure(folder: Path, setting: Setting, seed: int, model: Path) -> dict[str, Any]:
    addresses: list[str] = []
    for _ in range(2 + setting.num_senders + setting.num_replicas):
        addresses.append(LOOPBACK.free_address(set(addresses)))
    stand_in = setting.engine == "stand-in"
    return {
        "run": {
            "seed": seed,
            "steps": 1_000_000,
            "groups_per_step": GROUPS_PER_STEP,
            "max_lag": MAX_LAG,
            "checkpoint_every": 2,
        },
        "model": {"path": str(model), "dtype": "bfloat16" if stand_in else "float32"},
        "data": {"train": str(folder / "train.jsonl")},
        "reward": {"rules": {"last_integer": 1.0}},
        "rollout": {
            "replicas": setting.num_replicas,
            "device": "cpu",
            "group_size": GROUP_SIZE,
            "max_tokens": MAX_TOKENS,
            "max_prompt_tokens": 64,
            "max_concurrency": 8,
            "kv_cache_gib": 0.05,
            "idle_timeout": 4 if stand_in else 20,
        },
        "trainer": {"device": "cpu", "tensor_parallel": setting.num_senders},
        "weight_sync": {
            "transport": setting.transport,
            "delta": setting.delta,
            "bucket_mib": 1,
            "stage_timeout": 3 if stand_in else 8,
            "commit_timeout": 2 if stand_in else 8,
            "join_timeout": 6 if stand_in else 15,
            "prove_timeout": 3 if stand_in else 10,
            "heartbeat_timeout": 1.5 if stand_in else 4,
            "sample_share": 0.25,
        },
        "endpoints": {
            "controller": "127.0.0.1:0",  # nothing calls it, and one may replace another
            "reward": addresses[0],
            "weight_sync": addresses[1],
            "trainer": addresses[2 : 2 + setting.num_senders],
            "rollout": addresses[2 + setting.num_senders :],
        },
        "start_timeout": START_SECONDS,
    }


async def _take_over(run_folder: Path) -> None:
    """The controller that comes is not the run's first: there is an older epoch."""
    store = SqliteStore(run_folder / "store.sqlite")
    await store.next_epoch(run_folder.name)
    await store.close()


def write_model(folder: Path, model: dict[str, Any] = MODEL) -> Path:
    """What the services look at of a model that nothing computes with."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(model))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).touch()
    return folder


def _index(name: str) -> int:
    return int(name.rpartition("-")[2])
