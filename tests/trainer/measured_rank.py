"""One trainer rank as a process that says what it takes:

    python -m tests.trainer.measured_rank CONFIG FOLDER RANK

It trains two steps and writes FOLDER/RANK.json: bytes.
"""

from __future__ import annotations

import gc
import io
import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.file_meeting import FileMeeting
from benchmarks.trainer import Work, make_batch
from services.trainer.exchange.held import HeldShard
from trimaran.config import RunConfig, load_config
from trimaran.data.images.processor import ImageProcessor, takes_images
from trimaran.host.device import pick
from trimaran.types import Message, ScoredGroup, TrainingBatch

KIB = 1 << 10


def status(key: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(f"{key}:"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def live_tensors() -> int:
    """Bytes of all tensors that there are; a storage counts once."""
    import torch

    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def measure(config: RunConfig, folder: Path, rank: int) -> dict[str, int]:
    from services.trainer.backend import build_policy
    from services.trainer.step.learner import train_step

    meeting: Any = FileMeeting(folder / "meeting.json")
    policy = build_policy(config, meeting, pick("cpu"), rank)
    rollout = config.rollout
    work = Work(
        groups=config.run.groups_per_step,
        group_size=rollout.group_size,
        prompt_tokens=rollout.max_prompt_tokens,
        completion_tokens=rollout.max_tokens,
        vocabulary=policy.tensors[0].shape[0],
    )
    batch = make_batch(work)
    if takes_images(config.model.path):
        batch = of_images(batch, config)
    train_step(policy, batch, config)
    fixed, before = live_tensors(), status("VmRSS")
    forget_peak()
    train_step(policy, batch, config)
    peak = status("VmHWM")
    held = None
    if config.trainer.layout.place(rank).sends:
        held = HeldShard(policy, lambda snapshot: None, config.weight_sync.delta)
        held.adopt(held.take())
    return {
        "fixed": fixed,
        "passing": peak - before,
        "process": peak,
        "snapshot": len(held.snapshot.buffer) if held else 0,
    }


def of_images(batch: TrainingBatch, config: RunConfig) -> TrainingBatch:
    """With prompts that are one image each, from end to end."""
    processor = ImageProcessor(config.model.path)
    tokens = config.rollout.max_prompt_tokens
    height = next(side for side in range(math.isqrt(tokens), 0, -1) if tokens % side == 0)
    sides = height * processor.multiple, tokens // height * processor.multiple

    def with_image(scored: ScoredGroup) -> ScoredGroup:
        image = noise(*sides, seed=scored.group.number)
        prompt = replace(scored.group.prompt, messages=(Message("user", "<image>", (image,)),))
        digest = processor.process([image]).digest
        ids = (processor.image_token_id,) * tokens
        return replace(
            scored,
            group=replace(scored.group, prompt=prompt, prompt_token_ids=ids, image_digest=digest),
        )

    return TrainingBatch(batch.step, tuple(map(with_image, batch.groups)))


def noise(height: int, width: int, seed: int) -> bytes:
    """A PNG file."""
    from PIL import Image

    data = io.BytesIO()
    pixels = random.Random(seed).randbytes(3 * height * width)
    Image.frombytes("RGB", (width, height), pixels).save(data, "PNG")
    return data.getvalue()


if __name__ == "__main__":
    run_folder, number = Path(sys.argv[2]), int(sys.argv[3])
    found = measure(load_config(sys.argv[1]), run_folder, number)
    (run_folder / f"{number}.json").write_text(json.dumps(found))
