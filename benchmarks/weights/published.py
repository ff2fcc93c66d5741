"""What peers have published of their weight syncs, beside ours; not a comparison.

Their models are 30 to 7,000 times the bytes of ours, their machines hold accelerators and RDMA,
and they count different stretches: some the transfer alone, some with pause and cache release.
"""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    system: str
    model: str
    hardware: str
    seconds: str
    source: str


PUBLISHED = (
    Published(
        "verl, HCCL",
        "Qwen3-30B-A3B",
        "2 x 16 Ascend 910C",
        "~11",
        "verl/checkpoint_engine/README.md",
    ),
    Published(
        "verl, checkpoint-engine P2P",
        "Qwen3-30B-A3B",
        "2 x 16 Ascend 910C",
        "3.5 + 7 offload",
        "verl/checkpoint_engine/README.md",
    ),
    Published(
        "verl, NCCL or NIXL",
        "Qwen3-30B-A3B",
        "4 x 8 H100",
        "~7",
        "verl/checkpoint_engine/README.md",
    ),
    Published(
        "verl, mooncake", "Qwen3-30B-A3B", "2 x 8 H100", "5.93", "verl/checkpoint_engine/README.md"
    ),
    Published(
        "verl, checkpoint engine off -> on",
        "235B",
        "64 + 64 H20",
        "58.57 -> 23.70",
        "verl fully_async_policy/README.md",
    ),
    Published(
        "verl, delta_sharded",
        "235B, 0.9-3 % changed",
        "GPUs",
        "246-266 -> 11.4-14.9",
        "verl delta_weight_sync.md",
    ),
    Published("vime, colocated IPC", "Qwen3-4B", "Ascend A2", "1.6-2.3", "vime#255"),
    Published("AReaL, through disk", "not given", "not given", "4.8", "AReaL"),
    Published(
        "NeMo, nccl_reshard",
        "671B / 30B / 4B",
        "GPUs, not named",
        "2.4-2.8 / 0.7-1.0 / 0.2-0.3",
        "NeMo-RL nccl-reshard-refit.md",
    ),
    Published(
        "NeMo, sparse delta over S3",
        "247 GB, 3 % changed",
        "GPUs",
        "20.2",
        "NeMo-RL sparse-delta-refit.md",
    ),
    Published(
        "miles, NCCL -> RDMA P2P",
        "235B / 744B / 1T",
        "H100 + InfiniBand",
        "10.8->3.2 / 58->8.5 / 53->7.2",
        "miles p2p-weight-transfer.md",
    ),
    Published(
        "checkpoint-engine, broadcast",
        "K2 1T FP8",
        "256 x H20",
        "16.04",
        "checkpoint-engine README",
    ),
    Published("TRL", "0.6B", "GPU, not named", "~0.18", "TRL PR #5892"),
    Published("TorchStore, RDMA", "0.6B", "GPUs, RDMA", "21.25 -> 0.067", "torchtitan PR #2525"),
    Published("Perplexity, RDMA", "235B / 1T", "GPUs, RDMA", "~2 / 1.3", "le.qun.ch"),
)


def table() -> str:
    lines = [
        "",
        "Published by peers (other models, accelerators, other stretches of the sync: not comparable",
        "with the rows above, which are 0.27 GB on two CPU cores with every block verified):",
        *(f"  {p.system:36}{p.model:26}{p.hardware:22}{p.seconds:32}{p.source}" for p in PUBLISHED),
    ]
    return "\n".join(lines)
