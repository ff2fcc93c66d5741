"""The sections `run`, `validation` and `metrics`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, model_validator

from trimaran.config.section import Section
from trimaran.config.values import (
    NonNegative,
    PlaceUrl,
    Positive,
    Samples,
    SchemeName,
    Seconds,
    SinkName,
    check_best_by,
)
from trimaran.errors import InputError
from trimaran.telemetry.metrics import GREEDY_REWARD
from trimaran.types import ProofLevel

LENGTH_KEYS = ("steps", "epochs")
"""Keys of `run` that say how long it goes on: one takes the other's place."""


class RunSection(Section):
    """How long a run goes on, and how it is repeated. `run: {name: addition, steps: 20, seed: 2}`"""

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] = "run"
    """Run folders are called <name>-<date>-<time>."""
    folder: Path = Path("runs")
    """Where run folders are made; relative to the working directory."""
    seed: NonNegative = 1
    steps: Positive | None = None
    """20, where `epochs` is not given either."""
    epochs: Positive | None = None
    """In place of `steps`: times that the prompts are gone through; docs/data.md. The controller counts the steps."""
    groups_per_step: Positive = 8
    max_lag: NonNegative = 0
    """How many steps old the weights behind a token may be when it trains; 0 is synchronous GRPO."""
    max_attempts: Positive = 3
    """Failures after which a prompt is skipped."""
    deterministic: bool = False
    """The same batches give the same weights, bit for bit, in the same layout on the same kind of device:
    variables and switches of the libraries are set for it. A resumed run trains recorded batches again; it
    must reach the recorded weights, or it stops."""
    checkpoint_every: Positive = 10
    """Steps."""
    keep_checkpoints: Positive = 1
    """The newest ones; older ones are removed."""
    keep_best: NonNegative = 0
    """Besides, so many that are best by `best_by`, of all that were saved. A resume begins at the newest one all the
    same."""
    best_by: Annotated[str, AfterValidator(check_best_by)] = GREEDY_REWARD
    """Which number that is: a key of docs/metrics.md, of the step's validation or of the step itself. The greatest
    is best; with a `-` before the key, as in -rollout/completion/truncated/share, the least."""
    checkpoint_models: bool = False
    """Each checkpoint also holds its model as a Hugging Face folder, `huggingface/`."""
    checkpoints: PlaceUrl | None = None
    """Where checkpoints, the trained model and what people read of a run lie: a folder that all hosts
    of the run see, or a bucket such as s3://name/path; without it the run folder. docs/operations.md"""
    payloads: PlaceUrl | None = None
    """Where scored groups and archived records lie: a folder, or a bucket such as s3://name/path;
    without it the run folder. Credentials come from the environment, as the vendor's tools take them."""
    keep_payloads: Literal["resume", "all"] = "resume"
    """resume: what is older than the oldest kept checkpoint is deleted. all: what `trimaran replay`
    needs."""
    payload_quota_gib: Annotated[float, Field(gt=0, le=1 << 30)] | None = None
    """The bound of all payloads; a run that has no more room is held."""
    proof: ProofLevel = ProofLevel.DELIVERED
    """What must be known of the weights behind a token before it trains: delivered, sampled or loaded, as
    docs/weight-plane.md says."""
    hold_timeout: Seconds = 3600
    """A run that is held for longer, because its record cannot be written, fails and can be resumed."""
    pools: Literal["separate", "colocated"] = "separate"
    """separate: trainer and rollout have devices of their own. colocated: they take turns on the same ones,
    and who waits keeps its state in the host's memory. docs/parallelism.md says what that costs."""

    @model_validator(mode="before")
    @classmethod
    def _ends_one_way(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        branch = cast(dict[str, Any], tree)
        named = [key for key in LENGTH_KEYS if branch.get(key) is not None]
        if len(named) > 1:
            raise ValueError("steps and epochs: give one of them, and null for the other")
        return branch if named else {**branch, "steps": 20}

    @property
    def num_steps(self) -> int:
        """0 while nothing has counted those of `epochs`."""
        return self.steps or 0

    def counted(self, num_prompts: int) -> RunSection:
        """With the steps of its epochs. A batch goes on into the next epoch, so that only the last epoch's end may
        leave prompts over. Raises InputError for prompts that are too few for a step."""
        if self.epochs is None:
            return self
        steps = self.epochs * num_prompts // self.groups_per_step
        if not steps:
            raise InputError(
                f"run.epochs: {self.epochs} x {num_prompts} prompts are less than a step of"
                f" {self.groups_per_step} (run.groups_per_step); give more epochs, or a smaller step"
            )
        return self.model_copy(update={"steps": steps, "epochs": None})

    @property
    def num_checkpoints(self) -> int:
        """That lie there at a time, at most: those that are kept, and one that is written."""
        return self.keep_checkpoints + self.keep_best + 1


class ValidationSection(Section):
    """Scoring held-out prompts on the way. `validation: {every: 10, samples: 4}`"""

    only: bool = False
    """The run validates the weights that it begins with, model.path or trainer.load, and ends: nothing trains
    and no model is exported. Its one validation has `final_samples`."""
    every: Positive = 5
    """Steps between validations; one more at the end."""
    before_train: bool = True
    """One more before the first step."""
    samples: Samples = 4
    """Completions a prompt at `temperature`, on the way; 0 leaves only greedy."""
    final_samples: Samples = 16
    """The same before the first step and at the end."""
    temperature: Annotated[float, Field(gt=0, le=10)] | None = None
    """The temperature of these; without it that of training, rollout.temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """For these: each token is drawn from the likeliest ones that have this probability together."""
    max_tokens: Positive | None = None
    """The bound of every answer to a held-out prompt; without it that of training, rollout.max_tokens."""
    max_prompts: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    correct_by: tuple[str, ...] = ()
    """By which term an answer counts as correct: the first of these that judged it, each a name under
    reward.rules, or name.part for a number that the rule reports beside its value. Without it the first of
    all rules, in their order there, by its part acc or accuracy where it reports one."""
    correct_from: float = 0.5
    """The least value of that term, unweighted, for which it does."""
    logged: Annotated[int, Field(ge=0, le=100)] = 0
    """Held-out prompts whose greedy answers each validation sends to `metrics.sinks` as a table: the first
    ones, the same each time. samples/ has the answers to all."""


class MetricsSection(Section):
    """What a run's numbers are called besides, and where they go besides the run folder.

    metrics: {also: [verl], sinks: [wandb], project: arithmetic}
    """

    also: tuple[SchemeName, ...] = ()
    """verl, mindspeed-rl: their names beside ours; docs/migrating.md has the tables."""
    sinks: tuple[SinkName, ...] = ()
    """wandb, or the name of an installed package's sink: services that show them. Each takes its address and its key from the
    environment of the controller, as its own documents say; docs/observability.md."""
    project: Annotated[str, Field(pattern=r"^\w[\w. -]*$", max_length=128)] = "trimaran"
    """What the sinks file the run under: letters, digits, `.`, `_`, `-` and spaces."""
