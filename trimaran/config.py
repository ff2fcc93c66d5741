"""The configuration of a run: a tree of sections, read from YAML and checked as a whole.

    config = load_config("run.yaml", ["trainer.learning_rate=1e-5"])
    config.trainer.learning_rate == 1e-5

Unknown keys are errors; the message suggests the closest valid key. One `InputError` lists
everything that is wrong, a line each. Relative paths start at the folder of the YAML file.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    SerializeAsAny,
    ValidationError,
    field_serializer,
    model_validator,
)
from pydantic_core import to_jsonable_python

from trimaran.choices import ADVANTAGES, AGGREGATIONS, ENGINES, LOSSES
from trimaran.config_faults import describe_faults
from trimaran.device import DeviceName, is_gpu_uuid
from trimaran.errors import InputError, did_you_mean
from trimaran.metrics import GREEDY_REWARD, METRICS, REWARD_MEAN, is_of_validation
from trimaran.parallel import Layout
from trimaran.places import is_bucket
from trimaran.recipes import RecipeName, follow_recipe
from trimaran.section import Options, Section, one_of
from trimaran.system_errors import refused
from trimaran.types import MAX_PIXELS, ProofLevel
from trimaran.yaml_text import parse_yaml

MAX_COUNT = 10**9
MAX_PROCESSES = 1024
MAX_THREADS = 1024
MAX_BF16_BETA = 0.99
"""bfloat16 has 8 significant bits: a change of less than 1/512 to 1/256 of a number rounds to none."""
MAX_SHARE = 1000
MAX_DATASETS = 64
MAX_SECONDS = 366 * 86400.0
"""A year. Timers of an operating system end long before the greatest float."""
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
NonNegative = Annotated[int, Field(ge=0)]
Threads = Annotated[int, Field(ge=1, le=MAX_THREADS)]
Samples = Annotated[int, Field(ge=0, le=1000)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


def _check_port(address: str) -> str:
    if int(address.rpartition(":")[2]) > LAST_PORT:
        raise ValueError(f"there is no port above {LAST_PORT} (given: {address!r})")
    return address


def _check_subnet(subnet: str) -> str:
    try:
        network = ipaddress.ip_network(subnet)
    except ValueError as error:
        raise ValueError(f"{error}; name a subnet as 10.0.0.0/8 (given: {subnet!r})") from None
    if network.is_loopback:
        raise ValueError(f"{subnet} is this machine alone; leave the key out for that")
    return str(network)


def _check_ports(ports: str) -> str:
    first, last = map(int, ports.split("-"))
    if not FIRST_PORT <= first <= last <= LAST_PORT:
        raise ValueError(f"must be a range within {FIRST_PORT}-{LAST_PORT} (given: {ports!r})")
    return ports


def _check_place(url: str) -> str:
    user, at, _ = url.partition("://")[2].partition("/")[0].partition("@")
    if at and ":" in user:
        raise ValueError("holds credentials; give them in the environment")
    return url if "://" in url else str(Path(url).resolve())


def _check_devices(value: Any) -> Any:
    if value != "auto" and not is_device_list(value):
        raise ValueError(
            "must be auto or a list of device numbers, or of UUIDs of GPUs, each once, such as [0, 1]"
            f" or [GPU-8932f937, MIG-dc4d] (given: {value!r})"
        )
    return value


def is_device_list(value: object) -> bool:
    """Numbers or UUIDs, at least one, none twice."""
    if not isinstance(value, list | tuple) or not value:
        return False
    names = cast(list[Any], value)
    are_numbers = all(type(name) is int and name >= 0 for name in names)
    are_uuids = all(isinstance(name, str) and is_gpu_uuid(name) for name in names)
    return (are_numbers or are_uuids) and len(set(names)) == len(names)


def _check_eager(value: Any) -> Any:
    if value != "auto" and not isinstance(value, bool):
        raise ValueError(f"must be auto, true or false (given: {value!r})")
    return value


def _check_recompute(value: Any) -> Any:
    if value != "selective" and not isinstance(value, bool):
        raise ValueError(f"must be true, false or selective (given: {value!r})")
    return value


def _check_best_by(key: str) -> str:
    bare = key.removeprefix("-")
    if "<" in bare or not any(metric.has(bare) for metric in METRICS):
        hint = did_you_mean(bare, [metric.key for metric in METRICS])
        raise ValueError(
            f"{key!r} is no metric{hint}; docs/metrics.md has them, such as {GREEDY_REWARD} and {REWARD_MEAN}."
            " What stands there in angle brackets is a name or a number here"
        )
    return key


def _check_scalar(value: Any) -> Any:
    if type(value) not in (bool, int, float, str):
        raise ValueError(f"must be true, false, a number or a text (given: {value!r})")
    return value


def _check_thinking(kwargs: Mapping[str, bool | float | str]) -> Mapping[str, bool | float | str]:
    value = kwargs.get("enable_thinking", True)
    if type(value) is not bool:
        # Templates compare it with false: 0 and "false" would leave it on.
        raise ValueError(f"enable_thinking must be true or false (given: {value!r})")
    return kwargs


Eager = Annotated[Literal["auto"] | bool, BeforeValidator(_check_eager)]
Devices = Annotated[Literal["auto"] | tuple[int | str, ...], BeforeValidator(_check_devices)]
Scalar = Annotated[bool | int | float | str, BeforeValidator(_check_scalar)]
TemplateKwargs = Annotated[Mapping[str, Scalar], AfterValidator(_check_thinking)]
Recompute = Annotated[bool | Literal["selective"], BeforeValidator(_check_recompute)]
LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TransportName = Literal["auto", "collective", "relay"]
SchemeName = Literal["verl", "mindspeed-rl"]
SinkName = Literal["wandb", "swanlab", "mlflow", "trackio"]
FIRST_PORT, LAST_PORT = 1024, 65535
Place = Annotated[str, AfterValidator(_check_place)]
"""A folder, or a bucket such as s3://name/path."""
Address = Annotated[
    str, Field(pattern=r"^([^:\s]+|\[[0-9a-fA-F:.]+\]):\d{1,5}$"), AfterValidator(_check_port)
]


LENGTH_KEYS = ("steps", "epochs")
"""Of `run`: each says how long it goes on, so that one takes the other's place."""


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
    best_by: Annotated[str, AfterValidator(_check_best_by)] = GREEDY_REWARD
    """Which number that is: a key of docs/metrics.md, of the step's validation or of the step itself. The greatest
    is best; with a `-` before the key, as in -rollout/completion/truncated/share, the least."""
    checkpoint_models: bool = False
    """Each checkpoint also holds its model as a Hugging Face folder, `huggingface/`."""
    checkpoints: Place | None = None
    """Where checkpoints, the trained model and what people read of a run lie: a folder that all hosts
    of the run see, or a bucket such as s3://name/path; without it the run folder. docs/operations.md"""
    payloads: Place | None = None
    """Where scored groups and archived records lie: a folder, or a bucket such as s3://name/path;
    without it the run folder. Credentials come from the environment, as the vendor's tools take them."""
    keep_payloads: Literal["resume", "all"] = "resume"
    """resume: what is older than the oldest kept checkpoint is deleted. all: what `trimaran replay`
    needs."""
    payload_quota_gib: Annotated[float, Field(gt=0, le=1 << 30)] | None = None
    """Of all payloads; a run that has no more room is held."""
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


class ModelSection(Section):
    """What is trained. `model: {path: models/SmolLM2-135M-Instruct}`"""

    path: Path
    """A Hugging Face folder: config.json, tokenizer and safetensors. Each host of the run that needs
    it has it there, or fetches it from `source`."""
    source: Place | None = None
    """Where a host that lacks `path` fetches it from, once: a folder or a bucket to which
    `trimaran model push` has brought it."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Which model is meant, as `trimaran model push` prints it: another one is refused."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """As torch calls it. What computes and what travels; main weights are always fp32."""


class RowSection(Section):
    """What the columns of a dataset's rows are, and what their prompts are taken for."""

    prompt_key: str = "prompt"
    """Holds a text, or a list of {"role", "content"} messages. As the other keys, a column or a place inside of one,
    as `extra_info.question`."""
    answer_key: str = "answer"
    """Of rows as verl writes them, without a column `answer`, it is `reward_model.ground_truth`."""
    image_key: str | None = None
    """Holds the prompt's images, one or a list: bytes, {"bytes", "path"} as the datasets library writes
    them, or the path of a file, from the dataset's folder on. Without it the rows have no images."""
    task: Annotated[str, Field(min_length=1)] = "default"
    """Reward rules may be for some tasks only."""
    task_key: str | None = None
    """Holds each row's task, in the place of `task`. verl's files have it in `data_source`."""
    system: str | None = None
    """A system message before every prompt that has none of its own."""


class DatasetSection(RowSection):
    """One of several datasets. Keys that it leaves out are as in `data`."""

    path: Path


class SharedDatasetSection(DatasetSection):
    """One of several that a run is trained on. `{path: gsm8k.parquet, weight: 3, task: gsm8k}`"""

    weight: Annotated[int, Field(ge=1, le=MAX_SHARE)] = 1
    """Its part of the prompts: with weights 3 and 1, three of each four are of the first dataset."""


class DataSection(RowSection):
    """Prompts with their reference answers. `data: {train: train.jsonl, answer_key: solution}`"""

    train: Annotated[tuple[SharedDatasetSection, ...], Field(min_length=1, max_length=MAX_DATASETS)]
    """A path, or a list of such files that are mixed, each with its weight, task and keys; docs/data.md.
    JSONL or Parquet, one prompt a row; or the format of an installed package, by the file's suffix."""
    validation: Annotated[tuple[DatasetSection, ...], Field(max_length=MAX_DATASETS)] = ()
    """The same, of prompts that are not trained on."""
    shuffle: bool = True
    """false: each dataset's rows come in the order of its file."""
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    """What the model's chat template is given besides the messages, such as `{enable_thinking: false}` of Qwen3.
    A key that the template does not know is refused; docs/data.md says what becomes of enable_thinking."""
    min_pixels: Annotated[int, Field(ge=1, le=MAX_PIXELS)] = 262144
    """A smaller image is enlarged, as its sides allow."""
    max_pixels: Annotated[int, Field(ge=1, le=MAX_PIXELS)] = 4194304
    """A larger image is reduced. Divided by 784 (Qwen2.5-VL) or 1024 (Qwen3-VL): its tokens."""

    @model_validator(mode="before")
    @classmethod
    def _pass_on(cls, tree: Any) -> Any:
        """A path alone is a list of one, and each dataset has the keys of `data` that it leaves out."""
        if not isinstance(tree, dict):
            return tree
        branch = dict(cast(dict[str, Any], tree))
        given_here = {key: branch.get(key) for key in RowSection.model_fields}
        own = {key: value for key, value in given_here.items() if isinstance(value, str)}
        for name in branch.keys() & {"train", "validation"}:
            value = () if branch[name] is None and name == "validation" else branch[name]
            items = cast(list[Any], value) if isinstance(value, list | tuple) else [value]
            branch[name] = [
                item if (given := _dataset(item)) is None else {**own, **given} for item in items
            ]
        return branch

    @model_validator(mode="after")
    def _pixels_in_order(self) -> DataSection:
        if self.min_pixels > self.max_pixels:
            raise ValueError(
                f"min_pixels ({self.min_pixels}) must not be more than max_pixels ({self.max_pixels})"
            )
        return self

    @field_serializer("train", "validation")
    def _as_short_as_given(self, sections: tuple[DatasetSection, ...]) -> Any:
        """Without what `data` says for all, so that an override of a resolved file's `data` holds."""
        own = {key: getattr(self, key) for key in RowSection.model_fields}
        items = [
            {key: value for key, value in tree.items() if key not in own or value != own[key]}
            for tree in (section.model_dump(mode="json") for section in sections)
        ]
        if len(items) == 1 and items[0].keys() <= {"path", "weight"}:
            return items[0]["path"]
        return items or None

    @property
    def has_images(self) -> bool:
        return any(one.image_key is not None for one in (*self.train, *self.validation))

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(one.path for one in (*self.train, *self.validation))


def _dataset(item: Any) -> dict[str, Any] | None:
    """An item of a list of datasets, which may be a path alone; None for what is neither."""
    if isinstance(item, str | Path):
        return {"path": item}
    if isinstance(item, DatasetSection):
        return dict(item)
    return _branch(item)


class RolloutSection(Section):
    """How completions are made. `rollout: {replicas: 2, group_size: 8, max_tokens: 256}`"""

    engine: Annotated[str, AfterValidator(ENGINES.check)] = "vllm"
    """vllm or transformers, or the name of an installed package's engine; docs/extending.md."""
    replicas: Positive = 1
    """At least so many: the run starts with them."""
    max_replicas: Positive = 1
    """At most so many; `replicas` where it is not given. More are started while devices are idle."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Of the pool of devices on which replicas are placed; only the manager reads them."""
    device: DeviceName = "auto"
    devices: Devices = "auto"
    """Numbers (of GPUs: or UUIDs) of replicas x tensor_parallel devices, the first replica's first; or auto: those in
    sight that the trainer leaves, in order. docs/architecture.md has the rules (Devices)."""
    threads: Threads = 1
    """CPU threads of one replica."""
    tensor_parallel: Positive = 1
    hosts: Positive = 1
    """Of one replica: tensor_parallel / hosts devices on each. Above 1 with vllm, `--launcher ray` or
    services that are started on their hosts; docs/deploy.md."""
    group_size: Positive = 8
    """Completions of a prompt; 1 where the advantage compares no group."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    max_tokens: Positive = 1024
    max_prompt_tokens: Positive = 1024
    """A longer prompt is skipped, counted and reported. Each place of an image counts."""
    limit_images: Positive = 4
    """Images of one prompt, of a model that takes any."""
    max_concurrency: Positive = 64
    """Completions that one replica decodes at the same time."""
    kv_cache_gib: Annotated[float, Field(gt=0, le=65536)] = 1
    """Room for keys and values on the CPU."""
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of an accelerator's memory for weights, keys and values."""
    prefix_cache: bool = True
    """vLLM computes a prompt once for all its completions, and what prompts begin with alike once."""
    eager: Eager = "auto"
    """vLLM without captured graphs. auto: with them on cuda only. The probe at the start checks
    that they follow a load of weights; they did on an H100. No NPU has been tried."""
    idle_timeout: Seconds = 60
    """Longest silence of a Generate stream before the group is tried elsewhere."""

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_replicas(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        branch = cast(dict[str, Any], tree)
        replicas = branch.get("replicas")
        # One that is no number is one fault, not two.
        return {"max_replicas": replicas, **branch} if type(replicas) is int else branch

    @model_validator(mode="after")
    def _same_on_each_host(self) -> RolloutSection:
        if self.tensor_parallel % self.hosts:
            raise ValueError(
                f"hosts ({self.hosts}) must divide tensor_parallel ({self.tensor_parallel}): each host"
                " of a replica has as many of its devices"
            )
        return self

    @property
    def devices_on_host(self) -> int:
        """Of one replica, on each of its hosts."""
        return self.tensor_parallel // self.hosts

    @property
    def num_followers(self) -> int:
        """Processes of one replica beside the first, one on each further host."""
        return self.hosts - 1

    @model_validator(mode="after")
    def _at_least_replicas(self) -> RolloutSection:
        if self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas ({self.max_replicas}) must not be less than replicas"
                f" ({self.replicas})"
            )
        return self


class PluginSection(Section):
    """How a reward plugin over HTTP is called. docs/reward-plugins.md gives the contract."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]
    """Only hosts that the operator allowed are called."""
    protocol: Literal["trimaran", "openrlhf", "sandbox_fusion"] = "trimaran"
    token_variable: Annotated[str, Field(pattern=r"^TRIMARAN_[A-Z0-9_]+$")] | None = None
    """Environment variable of the reward service that holds the bearer token."""
    ca_file: Path | None = None
    """Certificates that https trusts; the system's where it is not given."""
    timeout: Seconds = 30
    """One group, all its calls and their tries together."""
    attempts: Positive = 3
    batch_size: Annotated[int, Field(ge=1, le=1000)] = 64
    """Completions of one call."""
    max_concurrency: Positive = 8
    """Calls under way at a time."""


class RuleSection(Section):
    """One term of the reward. Its key is the rule's name, unless one of these names another:

    rules: {gsm8k: 1.0, style: {weight: 0.2, function: "style.py:score"}}
    """

    weight: float = 1.0
    tasks: tuple[str, ...] = ()
    """It judges answers to prompts of these tasks (`data.task`, or a dataset's own), and no others; of all
    tasks where none is named."""
    rule: str | None = None
    """A built-in rule; docs/rewards.md lists them."""
    function: str | None = None
    """path/to/file.py:name or package.module:name; only what the operator allowed."""
    plugin: PluginSection | None = None
    options: Mapping[str, JsonValue] = Field(default_factory=dict)
    """Given to the rule or function as keyword arguments."""
    minimum: float | None = None
    """Of a function: what an indigestible answer gets, and the least value that is believed; 0 where
    it is not given. Of a plugin: the latter, where it does not say it itself."""
    maximum: float | None = None

    def is_for(self, task: str) -> bool:
        return not self.tasks or task in self.tasks

    @model_validator(mode="after")
    def _one_source(self) -> RuleSection:
        if sum(source is not None for source in (self.rule, self.function, self.plugin)) > 1:
            raise ValueError("give one of rule, function and plugin")
        return self


def _weight_alone(value: Any) -> Any:
    return {"weight": value} if isinstance(value, int | float | str) else value


class RewardSection(Section):
    """What judges answers; docs/rewards.md. `reward: {rules: {gsm8k: 1.0}, workers: 4}`"""

    rules: Mapping[str, Annotated[RuleSection, BeforeValidator(_weight_alone)]] = Field(
        min_length=1
    )
    """Term -> weight, or a section with more to say; the reward is the weighted sum."""
    workers: Annotated[int, Field(ge=1, le=MAX_PROCESSES)] = 2
    """Processes in which rules and functions run."""
    timeout: Seconds = 10
    """One completion, one rule; a worker over it is killed."""
    memory_mib: Annotated[int, Field(ge=256, le=1 << 26)] = 4096
    """Address space of one worker; a checker that wants more is stopped."""
    max_faulted_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Of the last answers; above it the run pauses instead of learning from noise."""
    pause_timeout: Seconds = 3600
    """A run that is paused for longer fails, and can be resumed."""


class AdaptiveSection(Section):
    """A KL coefficient that follows a target. `adaptive: {target: 0.05}`"""

    target: Annotated[float, Field(gt=0)]
    """Nats a token."""
    horizon: Positive = 10000
    """Completions in which an error of 20% or more changes the coefficient by a fifth."""


class KlSection(Section):
    """The divergence from the frozen initial policy. `kl: {coefficient: 0.001, estimator: k3}`"""

    coefficient: Annotated[float, Field(ge=0)] = 0.0
    """0 keeps no reference."""
    adaptive: AdaptiveSection | None = None
    """Without it the coefficient stays."""
    place: Literal["loss", "reward"] = "loss"
    estimator: Literal["k1", "abs", "k2", "k3"] = "k3"
    offload: bool = False
    """The reference waits in the host's memory and is on the device during its passes only."""

    @model_validator(mode="after")
    def _adapts_something(self) -> KlSection:
        if self.adaptive and not self.coefficient:
            raise ValueError("adaptive starts from coefficient; give one above 0")
        return self


def _check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not 0 <= low < 1 < high:
        raise ValueError(f"must be [low, high] with 1 between them (given: [{low:g}, {high:g}])")
    return bounds


Bounds = Annotated[tuple[float, float], AfterValidator(_check_bounds)]


class CorrectionSection(Section):
    """For the difference between the rollout's numbers, or its older weights, and the trainer's.

    correction: {weights: sequence, cap: 2.0, geometric_bounds: [0.99, 1.01]}
    """

    old: Literal["trainer", "rollout"] = "trainer"
    """Whose log-probabilities the loss takes its ratio to: the trainer's own before the first update
    of the batch (decoupled PPO), or the rollout's, which leaves nothing to correct."""
    weights: Literal["token", "sequence", "none"] = "token"
    """The importance weight exp(old - rollout): of each token, or the product over its completion."""
    cap: Annotated[float, Field(gt=0)] | None = 2.0
    """Truncates the weights."""
    token_bounds: Bounds | None = None
    """Tokens whose exp(old - rollout) lies outside do not train (IcePop)."""
    geometric_bounds: Bounds | None = None
    """Completions whose geometric mean of it lies outside do not train."""

    @model_validator(mode="after")
    def _corrects_something(self) -> CorrectionSection:
        if self.old == "rollout" and (self.token_bounds or self.geometric_bounds):
            raise ValueError("with old: rollout nothing differs; leave the bounds out")
        return self


class EntropySection(Section):
    """Of the policy's next token. `entropy: {coefficient: 0.001}`"""

    coefficient: float = 0.0
    """Of a bonus in the loss, on the exact entropy of each trained token."""
    exact: bool = False
    """Measure it also without a bonus; else the metric is the mean of -log p of the sampled tokens."""

    @property
    def is_computed(self) -> bool:
        return self.exact or self.coefficient != 0.0


Advantage = Annotated[SerializeAsAny[Options], BeforeValidator(one_of(ADVANTAGES, "group"))]
Loss = Annotated[SerializeAsAny[Options], BeforeValidator(one_of(LOSSES, "ppo_clip"))]
Aggregation = Annotated[
    SerializeAsAny[Options], BeforeValidator(one_of(AGGREGATIONS, "token_mean"))
]


class DynamicSamplingSection(Section):
    """Groups whose rewards are all equal, which have no gradient, are replaced by those of further
    prompts (DAPO). `dynamic_sampling: {max_replaced: 3, term: accuracy}`"""

    term: str | None = None
    """Of reward.rules: equal are groups in which it is, such as those that are right or wrong
    throughout, whatever else is rewarded. Without it the whole reward."""

    max_replaced: Annotated[float, Field(gt=0, le=1000)] = 3.0
    """At most so many times run.groups_per_step between two steps; after that such groups train."""


class AlgorithmSection(Section):
    """GRPO and its family. docs/algorithms.md gives the formulas and the options of each type;
    docs/extending.md how installed packages add `loss`, `advantage` and `aggregation`.

    algorithm: {loss: {type: ppo_clip, clip_high: 0.28}, kl: {coefficient: 0.001}}
    """

    recipe: RecipeName | None = None
    """grpo, dr_grpo, dapo or gspo: the keys that a paper sets. Those that are given go before."""
    advantage: Advantage = cast(Any, "group")
    loss: Loss = cast(Any, "ppo_clip")
    aggregation: Aggregation = cast(Any, "token_mean")
    kl: KlSection = KlSection()
    correction: CorrectionSection = CorrectionSection()
    entropy: EntropySection = EntropySection()
    dynamic_sampling: DynamicSamplingSection | None = None
    """Without it every group trains."""
    truncated: Literal["train", "mask"] = "train"
    """mask: completions that were cut off at max_tokens count in the advantages, and do not train."""
    updates_per_batch: Positive = 1
    """Optimizer updates, each on a part of the step's groups."""
    epochs: Annotated[int, Field(ge=1, le=100)] = 1
    """How often each batch is gone through."""
    shuffle: bool = False
    """Which groups make an update is drawn anew in each epoch; else they stay in prompt order."""

    @model_validator(mode="after")
    def _agrees(self) -> AlgorithmSection:
        """What the functions say of themselves."""
        advantage: Any = self.advantage
        in_reward = self.kl.coefficient > 0 and self.kl.place == "reward"
        if in_reward and not advantage.takes_penalties:
            raise ValueError(
                f"advantage: {advantage.type} looks at scores, not at their sum with a KL penalty; set kl.place:"
                " loss"
            )
        if self.dynamic_sampling and advantage.teaches_where_equal:
            whitened = ", whiten: true" if getattr(advantage, "whiten", False) else ""
            raise ValueError(
                f"dynamic_sampling: with advantage {advantage.type}{whitened} a group of equal"
                " rewards may teach something; leave dynamic_sampling out"
            )
        return self

    @property
    def num_updates(self) -> int:
        """Optimizer updates of a step."""
        return self.updates_per_batch * self.epochs

    @property
    def needs_greedy(self) -> bool:
        """Whether each prompt is also answered at temperature 0, for the advantage."""
        return cast(Any, self.advantage).needs_greedy

    @property
    def needs_all(self) -> bool:
        """Whether also completions whose advantage is 0 have a gradient."""
        loss: Any = self.loss
        return loss.needs_all or self.kl.coefficient > 0 or self.entropy.coefficient != 0


class LoraSection(Section):
    """Adapters of low rank train, and the model's own weights do not. `lora: {rank: 16, alpha: 32}`"""

    rank: Annotated[int, Field(ge=1, le=4096)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """What an adapter adds is multiplied by alpha / rank."""
    targets: Annotated[tuple[LoraTarget, ...], Field(min_length=1)] = get_args(LoraTarget)
    """Matrices of each layer that have an adapter."""

    @model_validator(mode="after")
    def _each_once(self) -> LoraSection:
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets: name each once (given: {', '.join(self.targets)})")
        return self


class RouterSection(Section):
    """What chooses a token's experts: losses on it, and whose choice counts.
    `router: {load_balancing: 0.001, replay: true}`"""

    load_balancing: Annotated[float, Field(ge=0)] = 0.0
    """Coefficient of the loss that grows where some experts get more tokens than others."""
    z_loss: Annotated[float, Field(ge=0)] = 0.0
    """Coefficient of the loss that grows with the size of the router's logits."""
    replay: bool = False
    """Send each token through the experts that the engine chose for it, so that a choice that would fall
    otherwise in the trainer makes no other log-probability. Their weights are the trainer's own."""


class TrainerSection(Section):
    """Ranks, batches and AdamW. `trainer: {data_parallel: 2, learning_rate: 1.0e-6}`"""

    device: DeviceName = "auto"
    devices: Devices = "auto"
    """Numbers (of GPUs: or UUIDs) of one device a rank (tensor_parallel x pipeline_parallel x
    data_parallel x context_parallel), rank 0's first; or auto: the first ones in sight."""
    tensor_parallel: Positive = 1
    pipeline_parallel: Positive = 1
    """Stages, each with a part of the layers."""
    pipeline_layers: tuple[NonNegative, ...] = ()
    """Layers of each stage, such as [13, 15]; without it all have equally many. The first stage also has the
    embedding and a vision tower, the last one the head: [0, 28] gives the tower ranks of its own."""
    virtual_stages: Positive = 1
    """Of each pipeline rank, which so has its layers in several parts: it waits less for the others, and
    sends more (the interleaved schedule)."""
    data_parallel: Positive = 1
    context_parallel: Positive = 1
    """Ranks that share the tokens of each micro-batch, and in the attention its heads: for completions
    that are too long for one rank."""
    expert_parallel: Positive = 1
    """Shares of the experts, of a model that has them. They lie on the ranks of the other kinds: the size
    divides tensor_parallel x context_parallel x data_parallel."""
    expert_tensor_parallel: Positive = 1
    """Ranks that hold a slice of each expert of a share, as tensor_parallel ranks do of the rest. It divides
    tensor_parallel."""
    sequence_parallel: bool = False
    """Tensor-parallel ranks share the tokens where they would all compute the same, at norms: less
    memory for activations."""
    distributed_optimizer: bool = False
    """The ranks of data and context parallelism, which hold the same parameters, share main weights and
    AdamW's moments: each updates a part and sends it to the others."""
    offload: tuple[Literal["optimizer", "gradients"], ...] = ()
    """What is not on the device all the time: the optimizer waits on the host but for each update; gradients
    have no memory between an update and the next backward pass."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Of the pool of devices on which the ranks are placed; only the manager reads them."""
    threads: Threads = 1
    """CPU threads of one rank."""
    micro_batch_tokens: Positive = 4096
    """Packed tokens of one forward pass, prompts and completions, unless one completion or twice its
    prompt has more."""
    recompute: Recompute = False
    """true: keep a layer's input alone of its activations, and compute the others again in the backward
    pass, a third more work for much less memory. selective: compute the attention alone again."""
    freeze: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Parameters that stay as they are: patterns over their names in the Hugging Face folder, such as
    "model.embed_tokens.weight" or "*.mlp.gate.weight", where * is any text."""
    lora: LoraSection | None = None
    """Without it the model's own weights train."""
    router: RouterSection = RouterSection()
    fp32_head: bool = False
    """Logits of a bfloat16 model are computed in float32: nearer to what the engine samples from,
    where that computes so; slower, and with less memory for long batches."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    warmup_steps: NonNegative = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Of the learning rate after the warm-up; the last two fall to min_learning_rate at run.steps."""
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    optimizer: Literal["adamw", "adamw_bf16"] = "adamw"
    """adamw_bf16 keeps weights, moments and a compensation for rounding in bfloat16: 12 bytes a
    parameter instead of 18. For models in bfloat16."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    clip_grad: Annotated[float, Field(gt=0)] = 1.0
    max_nonfinite_steps: Positive = 3
    """Steps in a row with numbers that are not finite, after which the run ends."""
    step_timeout: Seconds = 1800
    """A step, or any other call of the trainer, that takes longer ends the run."""
    save_timeout: Seconds = 600
    """A checkpoint that takes longer is given up, and training goes on."""
    load: Path | None = None
    """A new run begins with the weights of this checkpoint: a folder such as
    runs/first/checkpoints/step-00100, or one in which there is `checkpoints/`, for its newest. It may be of
    any layout. The reference model is that of model.path all the same."""
    load_optimizer: bool = True
    """With AdamW's moments and their count. false: the weights of `load` alone."""

    @model_validator(mode="after")
    def _sequence_needs_tensor(self) -> TrainerSection:
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError(
                "sequence_parallel: tensor-parallel ranks share the tokens, and tensor_parallel is 1;"
                " leave it out"
            )
        return self

    @model_validator(mode="after")
    def _stages_need_ranks(self) -> TrainerSection:
        if self.virtual_stages > 1 and self.pipeline_parallel == 1:
            raise ValueError(
                "virtual_stages: they alternate between the ranks of a pipeline, and pipeline_parallel is"
                " 1; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _each_stage_has_its_layers(self) -> TrainerSection:
        layers = self.pipeline_layers
        if not layers:
            return self
        if len(layers) != self.pipeline_parallel:
            raise ValueError(
                f"pipeline_layers: {len(layers)} numbers of layers, and pipeline_parallel is"
                f" {self.pipeline_parallel}; give one for each stage"
            )
        if 0 in layers[1:-1]:
            raise ValueError(
                f"pipeline_layers: stage {layers.index(0, 1)} would hold nothing; only the first stage, which"
                " has the embedding, and the last one, which has the head, can be without layers"
            )
        if self.virtual_stages > 1:
            raise ValueError(
                "pipeline_layers: with virtual_stages all stages have equally many layers; leave out one of"
                " the two"
            )
        return self

    @model_validator(mode="after")
    def _optimizer_needs_others(self) -> TrainerSection:
        if self.distributed_optimizer and self.data_parallel * self.context_parallel == 1:
            raise ValueError(
                "distributed_optimizer: data- and context-parallel ranks share the optimizer, and both"
                " sizes are 1; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _experts_divide_ranks(self) -> TrainerSection:
        sizes = self.tensor_parallel, self.context_parallel, self.data_parallel
        parts = self.expert_parallel * self.expert_tensor_parallel
        if self.tensor_parallel % self.expert_tensor_parallel:
            raise ValueError(
                f"expert_tensor_parallel: {self.expert_tensor_parallel} does not divide tensor_parallel"
                f" {self.tensor_parallel}"
            )
        if (ranks := math.prod(sizes)) % parts:
            slices = self.expert_tensor_parallel
            times = f" x expert_tensor_parallel {slices}" if slices > 1 else ""
            raise ValueError(
                f"expert_parallel: {self.expert_parallel}{times} does not divide tensor_parallel x"
                f" context_parallel x data_parallel ({' x '.join(map(str, sizes))} = {ranks})"
            )
        return self

    @model_validator(mode="after")
    def _trains_one_of_both(self) -> TrainerSection:
        if self.lora and self.freeze:
            raise ValueError("freeze: with lora all of the model is frozen; leave it out")
        return self

    @model_validator(mode="after")
    def _moments_fall(self) -> TrainerSection:
        if self.optimizer == "adamw_bf16":
            for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
                if beta > MAX_BF16_BETA:
                    raise ValueError(
                        f"{name}: {beta:g} with optimizer adamw_bf16: a moment in bfloat16 would never"
                        f" fall; give at most {MAX_BF16_BETA:g}, or take optimizer adamw"
                    )
        return self

    @model_validator(mode="after")
    def _learning_rate_falls(self) -> TrainerSection:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate ({self.min_learning_rate:g}) must not be more than learning_rate"
                f" ({self.learning_rate:g})"
            )
        return self

    @property
    def layout(self) -> Layout:
        """How the ranks share the model and the batch."""
        return Layout(
            tensor=self.tensor_parallel,
            pipeline=self.pipeline_parallel,
            data=self.data_parallel,
            context=self.context_parallel,
            expert=self.expert_parallel,
            expert_tensor=self.expert_tensor_parallel,
            layers=self.pipeline_layers,
        )

    def checkpoint_file(self, rank: int) -> int | None:
        """The number of the file in a checkpoint that the rank writes; None where another one holds the
        same and writes it."""
        place = self.layout.place(rank)
        if self.distributed_optimizer:
            return rank
        return place.shard if place.sends else None


class WeightSyncSection(Section):
    """How new weights reach the replicas; docs/weight-plane.md explains each key.

    weight_sync: {transport: collective, delta: true}
    """

    transport: TransportName = "auto"
    """auto: shared memory inside one machine, else collective. Whatever is chosen, joiners,
    laggards and survivors of a broken group use the relay."""
    delta: bool = False
    """Send changed elements only, where that is smaller. The trainer then compares each version
    with the one before it."""
    bucket_mib: Positive = 64
    """Two buckets are under way at a time."""
    relay_fan_out: Positive = 2
    """Pullers that one peer serves at a time."""
    stage_timeout: Seconds = 120
    commit_timeout: Seconds = 60
    join_timeout: Seconds = 60
    prove_timeout: Seconds = 60
    """For one replica to read back everything that it has loaded."""
    heartbeat_timeout: Annotated[float, Field(ge=1, le=MAX_SECONDS)] = 30
    """Silence after which a replica leaves routing."""
    sample_share: Annotated[float, Field(gt=0, le=1)] = 0.125
    """Share of the blocks that an engine reads back at a time, in rotation; run.proof says how often."""


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
    """Of these; without it that of training, rollout.temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of these: each token is drawn from the likeliest ones that have this probability together."""
    max_tokens: Positive | None = None
    """Of every answer to a held-out prompt; without it that of training, rollout.max_tokens."""
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
    """wandb, swanlab, mlflow, trackio: services that show them. Each takes its address and its key from the
    environment of the controller, as its own documents say; docs/observability.md."""
    project: Annotated[str, Field(pattern=r"^\w[\w. -]*$", max_length=128)] = "trimaran"
    """What the sinks file the run under: letters, digits, `.`, `_`, `-` and spaces."""


class NetworkSection(Section):
    """Where the run's processes meet. `network: {subnet: 10.0.0.0/8, ports: 20000-32767}`"""

    subnet: Annotated[str, AfterValidator(_check_subnet)] | None = None
    """Each host listens on its own address in it, and tensors travel over that address' interface.
    Without it all processes are on one machine, and listen on loopback."""
    # Below Linux' range for outgoing connections: our own calls never take a port between its
    # choice and the service's bind.
    ports: Annotated[str, Field(pattern=r"^\d{1,5}-\d{1,5}$"), AfterValidator(_check_ports)] = (
        "20000-32767"
    )
    """Ports on which processes listen, first to last; a firewall has to let them through."""

    @property
    def port_range(self) -> range:
        first, last = map(int, self.ports.split("-"))
        return range(first, last + 1)


class Endpoints(Section):
    """host:port of every service. `trimaran train` fills in free loopback ports.

    endpoints: {reward: "127.0.0.1:7001", rollout: ["127.0.0.1:7003", "127.0.0.1:7004"]}
    """

    controller: Address | None = None
    reward: Address | None = None
    weight_sync: Address | None = None
    rollout: tuple[Address, ...] = ()
    trainer: tuple[Address, ...] = ()
    """One address a rank, rank 0 first."""


class RunConfig(Section):
    """All of it. Three keys must be given: model.path, data.train and reward.rules.

    Example: parse_config({"model": {"path": "models/SmolLM2-135M-Instruct"},
    "data": {"train": "train.jsonl"}, "reward": {"rules": {"gsm8k": 1.0}}}).rollout.group_size == 8
    """

    run: RunSection = RunSection()
    model: ModelSection
    data: DataSection
    rollout: RolloutSection = RolloutSection()
    reward: RewardSection
    # Made when it is read: its functions are not imported with this module.
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    trainer: TrainerSection = TrainerSection()
    weight_sync: WeightSyncSection = WeightSyncSection()
    validation: ValidationSection = ValidationSection()
    metrics: MetricsSection = MetricsSection()
    network: NetworkSection = NetworkSection()
    endpoints: Endpoints = Endpoints()
    start_timeout: Seconds = 300
    """When a process starts: how long it may take until it answers, and how long it waits for the
    services that it needs."""
    outage_timeout: Seconds = 300
    """Once the run is under way: how long the controller waits for weight sync, for the reward
    service or for any routable replica while none answers. After that the run ends and can be
    resumed. Give it the time in which a service that died is started again, loads its model and
    is proven."""
    frozen_timeout: Seconds = 60
    """A process that has answered before, and then is silent for so long, is killed and started
    again; so is one that is stopped (SIGSTOP) for so long while it starts, and one that has not
    answered so long after start_timeout. No step, save or load is that silent: they run beside what
    answers. A replica whose vLLM takes no call for so long, though it loads no weights, ends and is
    started again."""

    @model_validator(mode="before")
    @classmethod
    def _follow_recipe(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        given = cast(dict[str, Any], tree)
        rollout = _branch(given.get("rollout")) or {}
        max_tokens = rollout.get("max_tokens", RolloutSection.model_fields["max_tokens"].default)
        return follow_recipe(given, max_tokens)

    @model_validator(mode="after")
    def _algorithm_fits(self) -> RunConfig:
        groups, updates = self.run.groups_per_step, self.algorithm.updates_per_batch
        if updates > groups:
            raise ValueError(
                f"algorithm.updates_per_batch ({updates}) must not be more than"
                f" run.groups_per_step ({groups}): an update takes at least one group"
            )
        advantage: Any = self.algorithm.advantage
        sampling = self.algorithm.dynamic_sampling
        if self.rollout.group_size == 1 and advantage.compares_group:
            raise ValueError(
                f"rollout.group_size is 1, and algorithm.advantage: {advantage.type} compares the"
                " completions of a group; give 2 or more, or take remax or reinforce_pp"
            )
        if self.rollout.group_size < (least := advantage.least_group):
            raise ValueError(
                f"rollout.group_size is {self.rollout.group_size}, and with algorithm.advantage:"
                f" {advantage.type} every advantage would be 0 in groups of fewer than {least}; give"
                f" {least} or more, or other options of {advantage.type}"
            )
        if sampling and sampling.term and sampling.term not in self.reward.rules:
            raise ValueError(
                f"algorithm.dynamic_sampling.term: {sampling.term} is none of reward.rules"
                f" ({', '.join(self.reward.rules)})"
            )
        return self

    @model_validator(mode="after")
    def _rules_have_tasks(self) -> RunConfig:
        datasets = (*self.data.train, *self.data.validation)
        if any(one.task_key is not None for one in datasets):
            return self  # the rows have their own
        tasks = {one.task: None for one in datasets}
        for name, rule in self.reward.rules.items():
            for task in rule.tasks:
                if task not in tasks:
                    raise ValueError(
                        f"reward.rules.{name}.tasks: {task!r} is the task of no dataset"
                        f" ({', '.join(tasks)}); data.task, or task of a dataset, names it"
                    )
        return self

    @model_validator(mode="after")
    def _validations_can_be_so(self) -> RunConfig:
        section = self.validation
        if section.only and not self.data.validation:
            raise ValueError("validation.only: there is nothing to validate; give data.validation")
        for name in section.correct_by:
            if not any(name == rule or name.startswith(f"{rule}.") for rule in self.reward.rules):
                raise ValueError(
                    f"validation.correct_by: {name} is none of reward.rules"
                    f" ({', '.join(self.reward.rules)}), nor a part of one"
                )
        if section.logged and not self.metrics.sinks:
            raise ValueError(
                "validation.logged sends answers to metrics.sinks, and there are none; name one, or leave"
                " it out: samples/ in the run folder has all answers"
            )
        return self

    @model_validator(mode="after")
    def _checkpoints_can_be_so(self) -> RunConfig:
        run, every = self.run, self.validation.every
        if (
            run.keep_best
            and is_of_validation(run.best_by.removeprefix("-"))
            and (not self.data.validation or run.checkpoint_every % every)
        ):
            raise ValueError(
                f"run.keep_best ({run.keep_best}) compares validations: give data.validation, and a"
                f" run.checkpoint_every (it is {run.checkpoint_every}) that is a multiple of"
                f" validation.every ({every}); or let run.best_by name a number of the step"
            )
        if run.checkpoint_models and run.checkpoints and is_bucket(run.checkpoints):
            raise ValueError(
                f"run.checkpoint_models: in a bucket ({run.checkpoints}) no host has all parts of a"
                " checkpoint; leave it out, and bring those that matter into a folder for `trimaran"
                " convert`"
            )
        return self

    @model_validator(mode="after")
    def _optimizer_fits(self) -> RunConfig:
        if self.trainer.optimizer == "adamw_bf16" and self.trainer.distributed_optimizer:
            raise ValueError(
                "trainer.distributed_optimizer: splits the float32 weights of adamw, and adamw_bf16 has"
                " none; leave one of them out"
            )
        if self.trainer.optimizer == "adamw_bf16" and self.model.dtype != "bfloat16":
            raise ValueError(
                f"trainer.optimizer: adamw_bf16 is for model.dtype bfloat16 (it is {self.model.dtype});"
                " take adamw"
            )
        return self

    @model_validator(mode="after")
    def _adapters_fit(self) -> RunConfig:
        if self.trainer.lora and self.run.checkpoint_models:
            raise ValueError(
                "run.checkpoint_models: with trainer.lora a checkpoint holds the adapters alone; leave it"
                " out, the model is exported at the end"
            )
        if self.trainer.lora and self.algorithm.kl.offload:
            raise ValueError(
                "algorithm.kl.offload: with trainer.lora the reference is the model itself, without its"
                " adapters; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _has_as_many_as_needed(self) -> RunConfig:
        for key, have, want in (
            ("rollout", len(self.endpoints.rollout), self.rollout.replicas),
            ("trainer", len(self.endpoints.trainer), self.num_trainer_ranks),
        ):
            if have not in (0, want):
                raise ValueError(f"endpoints.{key} names {have} addresses; {want} are needed")
        for key, devices, want in (
            ("rollout", self.rollout.devices, self.num_rollout_devices),
            ("trainer", self.trainer.devices, self.num_trainer_ranks),
        ):
            if devices != "auto" and len(devices) != want:
                raise ValueError(
                    f"{key}.devices names {len(devices)} devices; {want} are needed"
                    f" ({DEVICES_NEEDED[key]})"
                )
        return self

    @model_validator(mode="after")
    def _pools_can_take_turns(self) -> RunConfig:
        if self.is_colocated and (fault := next(_faults_of_colocated(self), None)):
            raise ValueError(f"run.pools: colocated, and {fault}")
        return self

    @property
    def is_colocated(self) -> bool:
        """Trainer and rollout take turns on the same devices."""
        return self.run.pools == "colocated"

    @property
    def num_rollout_devices(self) -> int:
        return self.rollout.replicas * self.rollout.tensor_parallel

    @property
    def num_trainer_ranks(self) -> int:
        return self.trainer.layout.num_ranks

    @property
    def max_answer_tokens(self) -> int:
        """Of a completion that trains, or of one to a held-out prompt, whichever may be longer."""
        return max(self.rollout.max_tokens, self.validation.max_tokens or 0)

    @property
    def max_answer_key(self) -> str:
        """Which key says so."""
        is_more = self.max_answer_tokens > self.rollout.max_tokens
        return "validation.max_tokens" if is_more else "rollout.max_tokens"

    @property
    def num_devices(self) -> int:
        """Of both pools; where they share them, each counts once."""
        shared = self.num_rollout_devices if self.is_colocated else 0
        return self.num_trainer_ranks + self.num_rollout_devices - shared

    @property
    def max_model_tokens(self) -> int:
        return self.rollout.max_prompt_tokens + self.max_answer_tokens


def _faults_of_colocated(config: RunConfig) -> Iterator[str]:
    """What keeps the pools from taking turns, with what to change."""
    run, rollout, trainer = config.run, config.rollout, config.trainer
    if run.max_lag:
        yield (
            f"run.max_lag is {run.max_lag}: pools that take turns never generate while they train; set"
            " run.max_lag=0, or run.pools=separate"
        )
    if (have := config.num_rollout_devices) != (want := config.num_trainer_ranks):
        yield (
            f"rollout.replicas x rollout.tensor_parallel ({rollout.replicas} x"
            f" {rollout.tensor_parallel} = {have}) is not the number of trainer ranks ({want},"
            f" {DEVICES_NEEDED['trainer']}): each of the shared devices belongs to one of both"
        )
    if rollout.hosts > 1:
        yield (
            f"rollout.hosts is {rollout.hosts}: turns are taken on the devices of one host; leave it out,"
            " or set run.pools=separate"
        )
    if rollout.max_replicas > rollout.replicas:
        yield (
            f"rollout.max_replicas ({rollout.max_replicas}) is more than rollout.replicas"
            f" ({rollout.replicas}): a replica that is added has no device to share; leave it out"
        )
    if "auto" not in (rollout.device, trainer.device) and rollout.device != trainer.device:
        yield (
            f"trainer.device is {trainer.device}, rollout.device {rollout.device}; name the same kind in"
            " both, or leave one of them out"
        )
    if [name for name, value in trainer.labels.items() if rollout.labels.get(name, value) != value]:
        yield (
            f"trainer.labels ({dict(trainer.labels)}) and rollout.labels ({dict(rollout.labels)}) are of"
            " different pools; name the same in both"
        )
    if "auto" not in (rollout.devices, trainer.devices) and rollout.devices != trainer.devices:
        yield (
            "rollout.devices and trainer.devices name different devices; name the same in both, or leave"
            " one of them out"
        )
    if config.weight_sync.transport == "collective":
        yield (
            "weight_sync.transport is collective: no collective has two ranks on one device; leave it"
            " out, and versions pass through the host's shared memory"
        )
    if config.network.subnet:
        yield (
            "network.subnet is for several hosts, and turns are taken on the devices of one; leave it out,"
            " or set run.pools=separate"
        )


DEVICES_NEEDED = {
    "rollout": "rollout.replicas x rollout.tensor_parallel",
    "trainer": "trainer.tensor_parallel x pipeline_parallel x data_parallel x context_parallel",
}
PATH_KEYS = (("model", "path"), ("data", "train"), ("data", "validation"), ("trainer", "load"))


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file, apply `key.sub=value` overrides, check everything."""
    return parse_config(load_tree(path, overrides), source=str(Path(path)))


def load_tree(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What a YAML file and the overrides say, with absolute paths, not checked yet."""
    path = Path(path)
    try:
        tree = _branch(parse_yaml(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise refused(f"{path}: cannot be read", error, "give a run's YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        raise InputError(f"{path}: must hold sections such as model:, data:, reward:")
    return resolve_tree(tree, path.parent, overrides)


def resolve_tree(
    tree: Mapping[str, Any], folder: Path, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """A copy in plain values. Relative paths of `tree` start at `folder`, those of `overrides` at
    the working directory."""
    plain: dict[str, Any] = to_jsonable_python(tree)
    for section, key in PATH_KEYS:
        branch = _branch(plain.get(section)) or {}
        if isinstance(branch.get(key), str):
            branch[key] = str((folder / branch[key]).resolve())
    _resolve_inner_paths(plain, folder)
    names = [f"run.{key}" for key in LENGTH_KEYS]
    if any(override.partition("=")[0] in names for override in overrides):
        run = _branch(plain.get("run")) or {}
        for key in LENGTH_KEYS:
            run.pop(key, None)
    for override in overrides:
        _apply(plain, override)
    _resolve_inner_paths(plain, Path.cwd())  # those of overrides, as for PATH_KEYS
    return plain


def _resolve_inner_paths(tree: dict[str, Any], folder: Path) -> None:
    """Those that stand in lists and mappings of sections."""
    _resolve_rule_paths(tree, folder)
    data = _branch(tree.get("data")) or {}
    for name in ("train", "validation"):
        if isinstance(data.get(name), list):
            data[name] = [_resolve_dataset(item, folder) for item in data[name]]


def _resolve_dataset(item: Any, folder: Path) -> Any:
    given = _dataset(item)
    if given is None or not isinstance(given.get("path"), str):
        return item
    return {**given, "path": str((folder / given["path"]).resolve())}


def _resolve_rule_paths(tree: dict[str, Any], folder: Path) -> None:
    """Files of reward functions and certificates, as PATH_KEYS."""
    reward = _branch(tree.get("reward")) or {}
    rules = _branch(reward.get("rules")) or {}
    for rule in filter(None, map(_branch, rules.values())):
        if isinstance(rule.get("function"), str) and ".py:" in rule["function"]:
            rule["function"] = str((folder / rule["function"]).resolve())
        plugin = _branch(rule.get("plugin")) or {}
        if isinstance(plugin.get("ca_file"), str):
            plugin["ca_file"] = str((folder / plugin["ca_file"]).resolve())


def _branch(value: Any) -> dict[str, Any] | None:
    """A mapping of a YAML file; None for any other value."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def parse_config(tree: Mapping[str, Any], source: str = "configuration") -> RunConfig:
    """Check a tree of plain values. Raises InputError with one line a fault."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        faults = describe_faults(RunConfig, error)
        raise InputError("\n".join(f"{source}: {fault}" for fault in faults)) from None


def config_to_tree(config: RunConfig) -> dict[str, Any]:
    """The resolved configuration in plain values, which `parse_config` reads back."""
    return json.loads(config.model_dump_json())


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML that `load_config` reads back."""
    return yaml.safe_dump(config_to_tree(config), sort_keys=False, allow_unicode=True)


def _apply(tree: dict[str, Any], override: str) -> None:
    value = override_value(override)
    if tuple(override.partition("=")[0].split(".")) in PATH_KEYS and isinstance(value, str):
        value = str(Path(value).resolve())
    set_override(tree, override, value)


def override_value(override: str) -> Any:
    """That of "key.sub=value", read as YAML. Raises InputError."""
    text = override.partition("=")[2]
    try:
        return parse_yaml(text) if text else ""
    except yaml.YAMLError:
        raise InputError(f"{override!r}: the value is not YAML") from None


NAMED = ("advantage", "loss", "aggregation")
"""Keys whose name alone stands for a section."""


def set_override(tree: dict[str, Any], override: str, value: Any) -> None:
    """Puts `value` where "key.sub=text" says. Raises InputError for what reads otherwise."""
    key, equals, _ = override.partition("=")
    if not equals or not key:
        raise InputError(f"{override!r}: an override reads key.sub=value")
    *sections, last = key.split(".")
    for section in sections:
        if section in NAMED and isinstance(tree.get(section), str):
            tree[section] = {"type": tree[section]}
        branch = _branch(tree.setdefault(section, {}))
        if branch is None:
            raise InputError(f"{override!r}: {section} is a value, not a section")
        tree = branch
    tree[last] = value
