"""One trainer rank: idempotency, checkpoints, snapshots, export."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer import rank as rank_module
from services.trainer.exchange.history import VersionHistory
from services.trainer.rank import TrainerRank
from services.trainer.step.learner import train_step
from tests.extending.memory_store import MemoryStore
from tests.trainer.batches import proofs_for, random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.test_policy import make_policy
from trimaran.config import RunConfig
from trimaran.errors import (
    DeadlineError,
    InputError,
    OutOfOrderError,
    UnavailableError,
    UnprovenError,
)
from trimaran.run.context import RunContext
from trimaran.run.device_turns import DeviceTurn
from trimaran.types import Peer, VersionId
from weights.sending.snapshot import Snapshot
from weights.version.layout import numbers_of

pytestmark = pytest.mark.usefixtures("single_rank")
BF16 = {"dtype": "bfloat16"}


PEER = Peer("127.0.0.1:1", "key", "host")


@contextlib.asynccontextmanager
async def started(
    config: RunConfig, run_folder: Path, hold: Callable[[Snapshot | None], None] = lambda _: None
) -> AsyncIterator[TrainerRank]:
    run_folder.mkdir(parents=True, exist_ok=True)
    rank = TrainerRank(config, RunContext.in_folder(run_folder), 0, hold)
    try:
        await rank.start(lambda: make_policy(config))
        yield rank
    finally:
        await rank.close()


async def save(rank: TrainerRank, step: int) -> Path:
    """As the service does, with one rank."""
    await rank.saver.begin(step)
    return Path(await rank.saver.publish([await rank.saver.written(step)]))


@pytest.mark.parametrize("when", ["bring_back", "put_away"])
async def test_an_export_whose_caller_goes_away_leaves_the_device_to_the_rollout(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    config = make_config(run={"pools": "colocated", "groups_per_step": 4}, model=BF16)
    rollout = DeviceTurn(tmp_path, (0,), "rollout-0")
    begun, may_go_on = threading.Event(), threading.Event()

    async with started(config, tmp_path) as rank:
        policy: Any = rank._policy
        move = getattr(policy, when)

        def slowly() -> None:
            begun.set()
            assert may_go_on.wait(30)
            move()

        monkeypatch.setattr(policy, when, slowly)
        export = asyncio.create_task(rank.export_model(rank.check_export("model")))
        assert await asyncio.to_thread(begun.wait, 30)
        export.cancel()
        await asyncio.wait([export])
        may_go_on.set()
        await rollout.take(20)
        rollout.release()
        again = Path(await rank.export_model(rank.check_export("model")))
        assert (again / "model.safetensors").is_file()


KL, TWICE = {"kl": {"coefficient": 0.1}}, {"updates_per_batch": 2}
ADAMW_BF16 = {"optimizer": "adamw_bf16"}
LORA: dict[str, Any] = {"rank": 4, "alpha": 6.0, "targets": ["q_proj", "v_proj", "down_proj"]}
ADAPTERS: dict[str, Any] = {"lora": LORA, "learning_rate": 1e-2}
FREEZE = ["model.embed_tokens.weight", "*.self_attn.[qkv]_proj.*", "model.layers.1.mlp.*"]


@pytest.mark.parametrize(
    ("family", "sections"),
    [
        ("qwen2", {"algorithm": KL}),
        ("qwen2", {"model": BF16, "algorithm": KL}),
        ("qwen2", {"model": BF16, "algorithm": KL | TWICE}),
        ("llama", {"trainer": {"freeze": FREEZE}, "algorithm": KL}),
        ("qwen3_moe", {"model": BF16, "trainer": ADAMW_BF16 | {"clip_grad": 1e-3}}),
        ("qwen3", {"model": BF16, "trainer": ADAPTERS, "algorithm": KL | TWICE}),
        ("qwen3", {"model": BF16, "trainer": ADAPTERS | ADAMW_BF16}),
        ("qwen3", {"model": BF16, "trainer": ADAPTERS | {"lora": LORA | {"merged": False}}}),
    ],
    ids=str,
)
async def test_a_resumed_run_equals_an_uninterrupted_one_bitwise(
    family: str, sections: dict[str, Any], make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(family, **sections)
    async with started(config, tmp_path) as rank:
        for step in (1, 2):
            await rank.train(random_batch(step))
        await save(rank, 2)
        wanted = [(await rank.train(random_batch(step))).version for step in (3, 4)]
    async with started(config, tmp_path) as resumed:
        found = [(await resumed.train(random_batch(step))).version for step in (3, 4)]
    assert found == wanted and wanted[0].root != wanted[1].root


async def test_a_rank_that_takes_turns_trains_saves_and_exports_as_one_that_does_not(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    colocated = make_config(run={"pools": "colocated", "groups_per_step": 4}, model=BF16)
    config = make_config(run={"groups_per_step": 4}, model=BF16)
    rollout = DeviceTurn(tmp_path, (0,), "rollout-0")

    async def in_turns() -> tuple[str, bytes]:
        async with started(colocated, tmp_path) as rank:
            for step in (1, 2):
                await rollout.take(1)  # the rank has left its device
                training = asyncio.create_task(rank.train(random_batch(step)))
                await asyncio.sleep(0.1)
                assert not training.done()
                rollout.release()
                answer = await training
            await rollout.take(1)
            await save(rank, 2)
            rollout.release()
            folder = Path(await rank.export_model(rank.check_export("model")))
            await rollout.take(1)
            return answer.version.root, (folder / "model.safetensors").read_bytes()

    root, model = await in_turns()
    rollout.release()
    async with started(config, tmp_path / "alone") as rank:
        roots = [(await rank.train(random_batch(step))).version.root for step in (1, 2)]
        other = Path(await rank.export_model(rank.check_export("model")))
        roots.append((await rank.train(random_batch(3))).version.root)
    assert model == (other / "model.safetensors").read_bytes()
    async with started(colocated, tmp_path) as rank:  # from what was saved while away
        third = await rank.train(random_batch(3))
    assert roots[1:] == [root, third.version.root] and root != third.version.root


async def test_a_rank_whose_device_is_never_free_says_who_has_it(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(run={"pools": "colocated"}, trainer={"step_timeout": 0.2, "device": "cpu"})
    rollout = DeviceTurn(tmp_path, (0,), "rollout-0")

    async with started(config, tmp_path) as rank:
        await rollout.take(1)
        with pytest.raises(DeadlineError, match="in use by rollout-0"):
            await rank.train(random_batch(1))
        assert "step 1 failed" in await rank.until_failed()  # it is started again


async def test_a_step_runs_once_and_any_other_is_refused(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async with started(make_config(), tmp_path) as rank:
        with pytest.raises(OutOfOrderError, match="send step 1"):
            await rank.train(random_batch(2))
        first, joined = await asyncio.gather(
            rank.train(random_batch(1)), rank.train(random_batch(1))
        )
        assert first == joined == await rank.train(random_batch(1))
        await rank.train(random_batch(2))
        with pytest.raises(OutOfOrderError, match="send step 3"):
            await rank.train(random_batch(1))
        await save(rank, 2)
        with pytest.raises(OutOfOrderError):
            await save(rank, 1)
    async with started(make_config(), tmp_path) as rank:
        # The recorded answer outlives the process.
        assert (await rank.train(random_batch(2))).metrics["trainer/loss"] != 0.0
        assert rank.version.version == VersionId(0, 2)


async def test_a_caller_that_gives_up_does_not_stop_the_step(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async with started(make_config(), tmp_path) as rank:
        caller = asyncio.create_task(rank.train(random_batch(1)))
        await asyncio.sleep(0)
        caller.cancel()
        answer = await rank.train(random_batch(1))
        assert answer.version.version == VersionId(0, 1)


async def test_after_a_failure_in_a_step_nothing_is_answered_any_more(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async with started(make_config(), tmp_path) as rank:
        broken = random_batch(1)
        group = broken.groups[0].group
        object.__setattr__(group.completions_G[0], "token_ids_T", (10**6,) * 4)
        with pytest.raises(IndexError):
            await rank.train(broken)
        with pytest.raises(UnavailableError, match="step 1 failed.*resume the run"):
            await rank.train(random_batch(1))


async def test_a_batch_of_another_size_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    async with started(make_config(), tmp_path) as rank:
        with pytest.raises(InputError, match="has 2 groups; 4 are needed"):
            rank.check_batch(random_batch(1, num_groups=2), (), lambda version: frozenset())


async def test_a_snapshot_under_way_to_replicas_stays_whole(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()
    async with started(make_config(model=BF16), tmp_path) as rank:
        begun, finish = asyncio.Event(), asyncio.Event()
        seen: list[torch.Tensor] = []

        def send(snapshot) -> str:
            seen.append(snapshot.buffer)
            seen.append(snapshot.buffer.clone())
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(finish.wait(), loop).result(60)
            return snapshot.manifest.root

        start = rank.version
        sending = asyncio.create_task(rank.send(start.version, send))
        await begun.wait()
        after = await rank.train(random_batch(1))
        assert torch.equal(*seen)
        finish.set()
        assert await sending == start.root != after.version.root
        with pytest.raises(OutOfOrderError, match=r"weights of 0\.0: the trainer holds 0\.1"):
            await rank.send(start.version, send)


@pytest.mark.parametrize("delta", [False, True])
async def test_an_offer_names_the_held_version_and_its_delta(
    make_config: MakeConfig, tmp_path: Path, delta: bool
) -> None:
    config = make_config(model=BF16, weight_sync={"delta": delta})

    async with started(config, tmp_path) as rank:
        first, offer = rank.offer(PEER)
        assert (offer.peer, offer.delta) == (PEER, None)
        assert list(numbers_of(offer.blocks)) == list(range(rank.manifest.num_blocks))
        await rank.train(random_batch(1))
        second, offer = rank.offer(PEER)
        assert second.root == rank.manifest.root != first.root
        assert Path(offer.memory).exists()
        assert (offer.delta is not None) == delta
        if offer.delta:
            assert offer.delta.base_root == first.root
            assert len(offer.delta.sizes) == rank.manifest.num_blocks


def test_a_rank_that_holds_no_share_says_whom_to_ask(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(trainer={"tensor_parallel": 2, "data_parallel": 2})
    with pytest.raises(InputError, match="rank 2 sends no weights; ask rank 0, 1"):
        TrainerRank(config, RunContext.in_folder(tmp_path), 2).offer(PEER)


async def test_only_tokens_of_versions_that_were_made_here_may_train(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    store, run = MemoryStore(), RunContext.in_folder(tmp_path)
    history, batch = await VersionHistory.open(store, run), random_batch(1)
    async with started(make_config(), tmp_path) as rank:
        root = rank.version.root
        await history.add(rank.version)
        with pytest.raises(UnprovenError, match="held root of another"):
            rank.check_batch(batch, proofs_for(batch, "of another"), history.roots)
        await history.add((await rank.train(batch)).version)
        await save(rank, 1)
    # A restarted trainer still knows the version before its checkpoint.
    history = await VersionHistory.open(store, run)
    async with started(make_config(), tmp_path) as rank:
        again = random_batch(2)
        rank.check_batch(again, proofs_for(again, root), history.roots)


async def test_a_rank_takes_part_in_a_step_once_it_has_ended_the_one_before(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 may have ended that one already, and be asked for the next."""
    begun, goes_on = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Any:
        begun.set()
        assert goes_on.wait(30)
        return train_step(*arguments)

    monkeypatch.setattr(rank_module, "train_step", slowly)

    async with started(make_config(), tmp_path) as rank:
        training = asyncio.create_task(rank.train(random_batch(1)))
        assert await asyncio.to_thread(begun.wait, 30)
        await rank.agree(1)  # rank 0 asks again
        with pytest.raises(OutOfOrderError, match="step 3: the trainer holds step 0"):
            await rank.agree(3)
        agreeing = asyncio.create_task(rank.agree(2))
        done, _ = await asyncio.wait([agreeing], timeout=0.1)
        assert not done
        goes_on.set()
        await training
        await agreeing
        with pytest.raises(OutOfOrderError, match="step 1: trainer rank 0 has it already"):
            await rank.agree(1)


async def test_the_exported_folder_loads_in_plain_transformers(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("llama", model=BF16)

    async with started(config, tmp_path) as rank:
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
            with pytest.raises(UnavailableError, match="0 left; make room there"):
                rank.check_export("model")
        await rank.train(random_batch(1))
        training = asyncio.create_task(rank.train(random_batch(2)))
        await asyncio.sleep(0)
        with pytest.raises(OutOfOrderError, match="step 2 is under way"):
            rank.check_export("model")
        await training
        await rank.export_model(rank.check_export("model"))
        with pytest.raises(InputError, match="into the run folder"):
            rank.check_export(str(tmp_path.parent / "elsewhere"))
        weights = {name: tensor.clone() for name, tensor in rank._policy.export()}
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype="auto", output_loading_info=True
    )
    model, notes = loaded
    assert not any(notes.values())
    assert model.dtype == torch.bfloat16
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    assert (tmp_path / "model/tokenizer.json").is_file()
    assert json.loads((tmp_path / "model/config.json").read_text())["dtype"] == "bfloat16"
