"""What a run reports: metrics rows, the timeline and events, which are also the log's lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from services.controller.reporting.busy_time import BusyTime
from services.controller.reporting.events import RunLog
from services.controller.reporting.step_metrics import (
    count_faulted,
    count_indigestible,
    count_samples,
    count_tokens,
    describe_batch,
    describe_pace,
)
from services.controller.validation.validation import Validation
from trimaran.clients import TrainAnswer
from trimaran.config import RunConfig
from trimaran.ledger.disk import naming_full_disk
from trimaran.ledger.records import Tainted
from trimaran.ledger.write_pause import WritePause
from trimaran.run.runs import EventKind, RunState
from trimaran.telemetry.metrics import EXPOSED_SCORING, EXPOSED_SYNCING
from trimaran.telemetry.run_files import Activity, MetricsWriter, TimelineWriter
from trimaran.types import Prompt, TrainingBatch


class Reporter:
    """One method for each thing that happens; it decides where that is reported: rows, timeline, events.

    Example:
        with reporter.phase("scoring"):
            scored = await scorer.score(group)
        reporter.skipped(prompt, "2000 tokens; rollout.max_prompt_tokens is 1024")
    """

    def __init__(
        self,
        config: RunConfig,
        metrics: MetricsWriter,
        timeline: TimelineWriter,
        log: RunLog,
        pause: WritePause,
    ) -> None:
        self._config, self._metrics, self._timeline, self._log = config, metrics, timeline, log
        self._pause = pause
        trainers = [f"trainer-{rank}" for rank in range(config.num_trainer_ranks)]
        self._making = BusyTime()
        """Completions with their scores."""
        self._renewing = BusyTime()
        """Weights: they are trained or published."""
        self._training_step = 0
        self._phases = {
            # The replicas' own spans stand on the timeline.
            "generating": BusyTime(whole=self._making),
            "scoring": self._on_timeline("scoring", "reward", whole=self._making),
            "training": BusyTime(self._trained(trainers), self._renewing),
            "syncing": self._on_timeline("syncing", "weight-sync", whole=self._renewing),
            "waiting": BusyTime(),
        }
        self._all_busy = (*self._phases.values(), self._making, self._renewing)
        self._step_began = time.monotonic()
        self._num_skipped_in_step = 0
        self.num_skipped = 0
        self._num_replaced_in_step = 0
        self.num_replaced = 0
        self._num_faulted = 0
        self._num_indigestible = 0
        self._num_samples = 0
        self.num_tokens = 0
        self.seconds = 0.0
        self.validations: dict[int, Validation] = {}
        self._values: tuple[int, Mapping[str, float]] = (0, {})
        self._doing: dict[str, str] = {}
        """What takes long, and how far it is."""
        self._holds: dict[str, str] = {}
        """Why the run is held, by what holds it."""

    @property
    def faulted_share(self) -> float:
        """A share of the completions in the batches that trained."""
        return self._num_faulted / self._num_samples if self._num_samples else 0.0

    @property
    def indigestible_share(self) -> float:
        """A share of the same: they trained with their rule's minimum."""
        return self._num_indigestible / self._num_samples if self._num_samples else 0.0

    def phase(self, name: str) -> BusyTime:
        """Enter it for the time of such work."""
        return self._phases[name]

    def training(self, step: int) -> BusyTime:
        """The same for the trainer, which may be at a step while the weights before it are published."""
        self._training_step = step
        return self._phases["training"]

    def running(self, step: int, state: RunState) -> None:
        """All services have answered, and the run stands where it stood: it goes on, or ends."""
        self._log.emit(EventKind.STATE, step=step, state=state)

    def progress(self, text: str) -> None:
        """What has no event of its own: most of it at the run's start and end."""
        self._log.emit(EventKind.PROCESS, text=text)

    @contextmanager
    def doing(self, what: str) -> Iterator[Callable[[str], None]]:
        """Around work that takes long: the run says so, and how far it is where that is known.

        Example:
            with reporter.doing("validating") as so_far:
                so_far("40 of 100 prompts")
        """

        def so_far(text: str) -> None:
            self._doing[what] = f"{what}: {text}" if text else what
            self._log.doing("; ".join(self._doing.values()))

        so_far("")
        try:
            yield so_far
        finally:
            del self._doing[what]
            self._log.doing("; ".join(self._doing.values()))

    def start_clock(self) -> None:
        """The next step begins now."""
        self._step_began = time.monotonic()
        for busy in self._all_busy:
            busy.cut()

    def step(self, batch: TrainingBatch, answer: TrainAnswer, synced: Mapping[str, float]) -> float:
        """Returns the seconds since the last step's weights were live, validation left out."""
        seconds = time.monotonic() - self._step_began
        self._step_began += seconds
        phases = {name: phase.cut() for name, phase in self._phases.items()}
        exposed_scoring = max(self._making.cut() - phases["generating"], 0.0)
        exposed_syncing = max(self._renewing.cut() - phases["training"], 0.0)
        values = {
            **describe_batch(batch),
            **describe_pace(batch, seconds, phases, self._config),
            EXPOSED_SCORING: exposed_scoring,
            EXPOSED_SYNCING: exposed_syncing,
            "controller/skipped_prompts": float(self._num_skipped_in_step),
            "controller/replaced_groups": float(self._num_replaced_in_step),
            **answer.metrics,
            **synced,
        }
        self._num_skipped_in_step = self._num_replaced_in_step = 0
        self._num_faulted += count_faulted(batch)
        num_indigestible = count_indigestible(batch)
        self._num_indigestible += num_indigestible
        self._num_samples += count_samples(batch)
        self.num_tokens += count_tokens(batch)
        self.seconds += seconds
        self._values = batch.step, values
        self._metrics.write("step", batch.step, values, nonfinite=answer.nonfinite)
        self._log.emit(EventKind.STEP, values, step=batch.step)
        if answer.nonfinite:
            text = f"{answer.nonfinite}; these updates changed nothing"
            self._log.emit(EventKind.NONFINITE, text=text)
        self._warn_of_indigestible(num_indigestible / count_samples(batch))
        return seconds

    def _warn_of_indigestible(self, share: float) -> None:
        """They are the answers' own fault, one by one; so many look like a function's."""
        if share > self._config.reward.max_faulted_share:
            text = (
                f"{share:.1%} of this step's answers got the minimum, because what judges them"
                " hung, crashed or raised on them twice; logs/reward.log in the run folder says why"
            )
            self._log.emit(EventKind.INDIGESTIBLE, {"share": share}, text)

    async def written(self) -> None:
        """Waits while there is no room for the rows of metrics and timeline."""

        async def flush() -> None:
            with naming_full_disk(self._metrics.folder):
                self._metrics.flush()
                self._timeline.flush()

        await self._pause.until_written(flush)

    @contextmanager
    def validating(self, step: int) -> Iterator[Callable[[str], None]]:
        """As `doing`. Validation stands on the timeline and outside the step's seconds; so does what is done
        beside it with `run.max_lag`."""
        began = time.monotonic()
        self.progress("validating")
        with (
            ExitStack() as stack,
            self._timeline.span("controller", "validating", step),
            self.doing(f"validating step {step}") as so_far,
        ):
            for busy in self._all_busy:
                stack.enter_context(busy.left_out())
            yield so_far
        self._step_began += time.monotonic() - began

    def validation(self, step: int, validation: Validation) -> None:
        self.validations[step] = validation
        self._values = step, {**self.values_of(step), **validation.values()}
        self._metrics.write("validation", step, validation.values())
        self._metrics.write_answers(step, validation.answers)
        self._log.emit(EventKind.VALIDATION, validation.values(), step=step)

    def values_of(self, step: int) -> Mapping[str, float]:
        """The last step's metrics and those of its validation, by key; nothing of an older one."""
        return self._values[1] if self._values[0] == step else {}

    def skipped(self, prompt: Prompt, reason: str) -> None:
        self.num_skipped += 1
        self._num_skipped_in_step += 1
        self._log.emit(EventKind.SKIPPED, text=f"{prompt.prompt_id}: {reason}")

    def replaced(self) -> None:
        """A group without a signal; there may be many, and no one of them matters."""
        self.num_replaced += 1
        self._num_replaced_in_step += 1

    def held(self, text: str, values: Mapping[str, float], by: str = "scoring") -> None:
        """`by`: what holds the run; it is released when nothing does any more."""
        self._holds[by] = text
        self._log.emit(EventKind.HELD, values, text, held="; ".join(self._holds.values()))

    def released(self, text: str, values: Mapping[str, float], by: str = "scoring") -> None:
        self._holds.pop(by, None)
        self._log.emit(EventKind.RELEASED, values, text, held="; ".join(self._holds.values()))

    def tainted(self, record: Tainted) -> None:
        num_groups, steps = len(record.groups), ", ".join(map(str, record.steps))
        text = (
            f"{num_groups} groups have trained, in steps {steps}, with tokens of {record.replica} at"
            f" versions {record.versions[0]} to {record.versions[-1]}, in which a fault was found since:"
            f" {record.fault}; the ledger names them"
        )
        self._log.emit(EventKind.TAINTED, {"groups": num_groups}, text)

    def replica_lost(self, name: str, reason: str) -> None:
        self._log.emit(EventKind.REPLICA_LOST, text=f"{name}: {reason}")

    def replica_back(self, name: str) -> None:
        self._log.emit(EventKind.REPLICA_BACK, text=f"{name} holds the live weights again")

    def replica_busy(self, name: str, start: float, end: float) -> None:
        self._timeline.add(name, "generating", start, end, self._log.run.step + 1)

    def checkpoint(self, step: int, path: str, root: str) -> None:
        self._log.emit(EventKind.CHECKPOINT, text=path, step=step, root=root)

    def checkpoint_failed(self, step: int, reason: str, newest: int | None) -> None:
        """`newest`: the step of the last checkpoint that was saved; None where there is none."""
        stands = (
            "there is no checkpoint yet" if newest is None else f"the newest is of step {newest}"
        )
        text = f"{reason}; {stands}"
        self._log.emit(EventKind.CHECKPOINT_FAILED, text=text, step=step)

    def failing(self, reason: str, seconds: float) -> None:
        """The run ends because of `reason`, once the checkpoint under way is written, which may take
        `seconds`."""
        text = f"the controller cannot go on: {reason}; the checkpoint under way is written first, within {seconds:g} s"
        self._log.emit(EventKind.PROCESS, text=text)

    def _trained(self, trainers: Sequence[str]) -> Callable[[float, float], None]:
        def report(start: float, end: float) -> None:
            for trainer in trainers:
                self._timeline.add(trainer, "training", start, end, self._training_step)

        return report

    def _on_timeline(
        self, activity: Activity, *processes: str, whole: BusyTime | None = None
    ) -> BusyTime:
        def report(start: float, end: float) -> None:
            for process in processes:
                self._timeline.add(process, activity, start, end, self._log.run.step + 1)

        return BusyTime(report, whole)
