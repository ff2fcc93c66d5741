"""Which parts a step has, and how long each takes on a host and on an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.trainer.step.learner import train_step
from services.trainer.step.part_times import HostClock, PartTimes
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.models import make_model
from tests.trainer.plain_policy import PlainPolicy
from trimaran.telemetry.metrics import find_metric

CPU = torch.device("cpu")
ALWAYS = {"planning", "advantages", "gradient", "optimizer"}


def parts_of(metrics: dict[str, float]) -> dict[str, float]:
    found = ((find_metric(key), key, value) for key, value in metrics.items())
    return {
        metric.names_in(key)[0]: value
        for metric, key, value in found
        if metric.key == "trainer/part/<part>/seconds"
    }


def test_a_part_has_the_sum_of_its_spans_and_each_is_taken_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments: Iterator[float] = accumulate(count(1.0))  # 1, 3, 6, 10, …
    monkeypatch.setattr(HostClock, "mark", lambda self: next(moments))
    times = PartTimes(CPU)
    for part in ("gradient", "optimizer", "gradient"):
        with times.of(part):
            pass
    assert parts_of(times.take()) == {"gradient": 2.0 + 6.0, "optimizer": 4.0}
    with times.of("reference_logprobs"), times.of("reference_onload"):
        pass
    assert parts_of(times.take()) == {"reference_logprobs": 8.0 + 9.0 + 10.0, "reference_onload": 9}
    assert times.take() == {}


class Device:
    """A queue of work in milliseconds, that is done when it is waited for."""

    def __init__(self) -> None:
        self.now, self.num_waits = 0.0, 0
        self.queue: list[float | Any] = []
        device = self

        class Event:
            at: float | None = None

            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                device.queue.append(self)

            def synchronize(self) -> None:
                device.num_waits += 1
                for one in device.queue:
                    if isinstance(one, Event):
                        one.at = device.now
                    else:
                        device.now += one
                device.queue.clear()

            def elapsed_time(self, end: Event) -> float:
                assert self.at is not None and end.at is not None
                return end.at - self.at

        self.Event = Event


def test_an_accelerators_parts_are_marked_in_its_queue_and_read_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    monkeypatch.setattr(torch, "get_device_module", lambda one: device)
    times: Any = PartTimes(SimpleNamespace(type="npu"))  # type: ignore[arg-type]
    device.queue.append(5.0)
    for part, work in (("old_logprobs", 250.0), ("gradient", 500.0), ("gradient", 1000.0)):
        with times.of(part):
            device.queue.append(work)
        device.queue.append(5.0)
    assert device.num_waits == 0
    assert parts_of(times.take()) == {"old_logprobs": 0.25, "gradient": 1.5}


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ({}, ()),
        ({"updates_per_batch": 2}, ("old_logprobs",)),
        ({"kl": {"coefficient": 0.1}}, ("reference_logprobs",)),
        (
            {"kl": {"coefficient": 0.1, "place": "reward"}},
            ("old_logprobs", "reference_logprobs"),
        ),
        ({"entropy": {"exact": True}}, ()),
    ],
    ids=str,
)
def test_a_steps_parts_follow_each_other_inside_it(
    make_config: MakeConfig, algorithm: dict[str, Any], more: tuple[str, ...]
) -> None:
    policy = PlainPolicy(make_model("llama"))
    metrics = train_step(policy, random_batch(1), make_config(algorithm=algorithm)).metrics
    parts = parts_of(metrics)
    assert parts.keys() == {*ALWAYS, *more}
    assert all(seconds > 0 for seconds in parts.values())
    assert sum(parts.values()) <= metrics["trainer/seconds"]
