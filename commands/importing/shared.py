"""Conversions that more than one system's table has."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands.importing.rows import NOT_SET, Convert, Fate, KeyOutcome, Theirs, is_on
from commands.importing.rows_file import column_names, count_rows
from trimaran.choices import SINKS
from trimaran.config import MAX_COUNT, MAX_SHARE
from trimaran.errors import InputError

ESTIMATORS = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
"""Their names of the estimates of a KL divergence."""
WRITTEN = ("console", "file", "tensorboard")
"""By every run of ours."""
ALL_PROMPTS = 1_000_000
"""The most prompts of a validation that `validation.max_prompts` takes."""
MOST_LOGGED = 100
"""The most that `validation.logged` takes."""
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED_TARGETS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Megatron's names of the same matrices."""


def updates_of(batch: int, mini: int, what: str) -> KeyOutcome:
    """A step's `batch` prompts in updates of `mini` prompts."""
    if mini > batch or batch % mini:
        return KeyOutcome(
            "refused",
            f"{batch} prompts of a step are no whole number of updates of {mini}; give a {what} that"
            f" divides {batch}",
        )
    return KeyOutcome("mapped", "", {"algorithm.updates_per_batch": batch // mini})


@dataclass(frozen=True, slots=True)
class Shape:
    """Their trainer's layout. `Shape(devices=8, tensor=2, rollout_tensor=1).split().replicas == 4`"""

    devices: int
    """Which train and generate in turns."""
    rollout_tensor: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1

    def split(self, in_turns: bool = False) -> Split:
        """Half of the devices train and the rest generates, or as near to it as the sizes go.

        `in_turns`: all of them do both. Raises InputError where the sizes do not go.
        """
        unit = self.tensor * self.pipeline * self.context
        # The smallest number of data-parallel ranks over which the experts divide.
        parts = self.expert * self.expert_tensor
        least = parts // math.gcd(parts, self.tensor * self.context)
        if in_turns:
            if self.devices % (unit * least) or self.devices % self.rollout_tensor:
                raise InputError(
                    f"run.pools=colocated: ranks come in {unit * least}s and a replica has"
                    f" {self.rollout_tensor} devices, which do not both divide {self.devices}; leave the"
                    " word out, or give other sizes"
                )
            return Split(self, self.devices // unit, self.devices // self.rollout_tensor, True)
        data = max(1, self.devices // 2 // (unit * least)) * least
        replicas = max(1, (self.devices - data * unit) // self.rollout_tensor)
        return Split(self, data, replicas)

    def outcome(self, in_turns: bool, distributes: bool = True, **more: Any) -> KeyOutcome:
        """`distributes`: the optimizer is split over ranks that share parameters. `more`: other keys of the trainer."""
        split = self.split(in_turns)
        sizes = {
            "tensor_parallel": self.tensor,
            "pipeline_parallel": self.pipeline,
            "context_parallel": self.context,
            "expert_parallel": self.expert,
        }
        settings = split.settings() | {
            f"trainer.{key}": size for key, size in (sizes | more).items()
        }
        if distributes and split.data * self.context > 1:
            settings["trainer.distributed_optimizer"] = True
        return KeyOutcome("noted", split.text(), settings)


@dataclass(frozen=True, slots=True)
class Split:
    """How many ranks train, and how many replicas generate."""

    shape: Shape
    data: int
    """Data-parallel ranks."""
    replicas: int
    in_turns: bool = False

    @property
    def trainers(self) -> int:
        shape = self.shape
        return shape.tensor * shape.pipeline * shape.context * self.data

    @property
    def generators(self) -> int:
        return self.replicas * self.shape.rollout_tensor

    def settings(self) -> dict[str, Any]:
        sizes = {"trainer.data_parallel": self.data, "rollout.replicas": self.replicas}
        return {"run.pools": "colocated", **sizes} if self.in_turns else sizes

    def text(self) -> str:
        replicas = f"{self.replicas} x {self.shape.rollout_tensor}"
        if self.in_turns:
            return (
                f"{self.trainers} devices of one host train and generate ({replicas}) in turns, as there;"
                " `trimaran plan` says what fits, and what waits in the host's memory"
            )
        total = self.trainers + self.generators
        more = total - self.shape.devices
        return (
            f"there {self.shape.devices} devices train and generate in turns; here {self.trainers} train and"
            f" {self.generators} generate ({replicas}){f', {more} more than there' if more > 0 else ''}. Choose other"
            " shares by trainer.data_parallel and rollout.replicas, or say run.pools=colocated behind the file, for"
            " turns as there; `trimaran plan` says what fits"
        )


def steps_of(total: Any, epochs: Any, batch: Any, files: Any, total_key: str) -> KeyOutcome:
    """`total` steps, or those of `epochs` over the rows of `files`, which the run counts where they are not here."""
    if total is not None:
        return KeyOutcome("mapped", "", {"run.steps": int(total)})
    paths = paths_of(files)
    rows = rows_of(paths)
    if rows is None:
        return KeyOutcome(
            "noted",
            f"the rows of the training file cannot be counted here, so the run counts them: epochs x rows // {batch}"
            f" steps. There the rest of each epoch is dropped; {total_key}=N gives another number",
            {"run.epochs": int(epochs)},
        )
    if rows < int(batch):
        return KeyOutcome(
            "refused", f"{', '.join(paths)}: {rows} rows, less than the {batch} prompts of a step"
        )
    steps = int(epochs) * (rows // int(batch))
    return KeyOutcome(
        "noted",
        f"{epochs} epochs of {rows} rows // {batch} = {steps} steps; rows that are too long count too",
        {"run.steps": steps},
    )


def known_steps(outcome: KeyOutcome) -> int | None:
    return outcome.settings.get("run.steps")


def rows_of(paths: Sequence[str]) -> int | None:
    """The rows of all files together; None where one cannot be counted."""
    counts = [count_rows(path) for path in paths]
    return None if None in counts or not paths else sum(filter(None, counts))


def paths_of(files: Any) -> list[str]:
    """The path of one file or of several, with the home folder put in."""
    named = [files] if isinstance(files, str) else list(files or [])
    return [str(Path(str(file)).expanduser()) for file in named]


def data_file(ours: str, key: str) -> Callable[[Any, Theirs], KeyOutcome]:
    """Files with prompts. What is no path of a file is refused."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        paths = paths_of(value)
        if not paths:
            fate: Fate = "refused" if ours == "data.train" else "ignored"
            return KeyOutcome(fate, f"give {key}=FILE" if fate == "refused" else "not set")
        if hub := [path for path in paths if "@" in Path(path).name and not Path(path).exists()]:
            return KeyOutcome(
                "refused",
                f"{', '.join(hub)}: a data set of the hub; bring it here with `trimaran data prepare`,"
                f" and give {key}=FILE",
            )
        found = [str(Path(path).absolute()) for path in paths]
        settings: dict[str, Any] = {ours: found[0] if len(found) == 1 else found}
        notes: list[str] = []
        if away := [path for path in paths if not Path(path).exists()]:
            notes.append(f"{', '.join(away)}: not here now")
        if ours == "data.train" and len(found) > 1:
            weights, text = _mixed(paths, theirs.is_on("data.shuffle"))
            pairs = zip(found, weights, strict=True)
            if set(weights) != {1}:
                settings = {ours: [{"path": path, "weight": weight} for path, weight in pairs]}
            notes += [text] if text else []
        return KeyOutcome("noted" if notes else "mapped", "; ".join(notes), settings)

    return convert


def _mixed(paths: Sequence[str], shuffled: bool) -> tuple[list[int], str]:
    """A weight for each of several files, which are one list of rows there; and what differs."""
    counts = [count_rows(path) or 0 for path in paths]
    if not all(counts):
        return [1] * len(paths), (
            "there the files are one list of rows; here each has the same part of the prompts, as their rows cannot"
            " be counted: set the weight of each in data.train of the run"
        )
    shared = math.gcd(*counts)
    weights = [count // shared for count in counts]
    if (most := max(weights)) > MAX_SHARE:
        weights = [max(1, round(weight * MAX_SHARE / most)) for weight in weights]
    if not shuffled:
        return weights, "there one file follows the other; here they are mixed by their rows"
    if most > MAX_SHARE:
        return weights, f"mixed nearly by their rows, {' to '.join(map(str, weights))}"
    return weights, ""


def image_key(value: Any, theirs: Theirs) -> KeyOutcome:
    """The column of images, where the rows have it: ours is given for rows with images alone."""
    files = paths_of(theirs["data.train_files"])
    known = [names for file in files if (names := column_names(file)) is not None]
    if any(value not in names for names in known):
        return KeyOutcome("ignored", "the rows have no such column")
    if known:
        return KeyOutcome("mapped", "", {"data.image_key": value})
    if "data.image_key" not in theirs.given:
        return KeyOutcome("ignored", "not asked for")
    text = "the file is not here: give ~data.image_key if its rows have no such column"
    return KeyOutcome("noted", text, {"data.image_key": value})


def limit_images(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or int(value) < 1:
        return KeyOutcome("ignored", "rollout.limit_images has a default of its own, 4")
    return KeyOutcome("mapped", "", {"rollout.limit_images": int(value)})


def model_folder(value: Any, theirs: Theirs) -> KeyOutcome:
    if not value:
        return KeyOutcome("refused", "name the model's folder")
    path = Path(str(value)).expanduser()
    settings = {"model.path": str(path.absolute())}
    if path.is_dir():
        return KeyOutcome("mapped", "", settings)
    is_on_hub = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(value))
    fetch = f" (`hf download {value} --local-dir {value}`)" if is_on_hub else ""
    return KeyOutcome(
        "noted",
        f"{value} is no folder here: a run takes a folder in Hugging Face's form, so fetch it there"
        f"{fetch}, or give model.source",
        settings,
    )


def project_name(value: Any) -> str:
    """With the characters that `metrics.project` may have."""
    return re.sub(r"[^\w. -]+", "-", str(value)).strip("-. ")


def run_name(value: Any, theirs: Theirs) -> KeyOutcome:
    name = re.sub(r"[^\w.-]+", "-", str(value or "")).strip("-.")
    if not name:
        return KeyOutcome("ignored", "not set")
    return KeyOutcome("mapped", "", {"run.name": name})


def loggers(value: Any, theirs: Theirs) -> KeyOutcome:
    if "trainer.logger" not in theirs.given:
        return KeyOutcome("ignored", "not asked for")
    named = [value] if isinstance(value, str) else list(value or [])
    sinks = [name for name in named if name in SINKS.names()]
    others = [name for name in named if name not in (*WRITTEN, *sinks)]
    settings = {"metrics.sinks": sinks} if sinks else {}
    if others:
        text = f"{', '.join(others)}: not written here; every run writes {', '.join(WRITTEN)}"
        return KeyOutcome("noted", text, settings)
    if not sinks:
        return KeyOutcome("ignored", "every run writes these")
    return KeyOutcome("mapped", "", settings)


def kl_in(
    place: str, coefficient: Any, estimator: Any, adaptive: Mapping[str, Any] | None = None
) -> KeyOutcome:
    """The section algorithm.kl. `adaptive`: target and horizon, where the coefficient follows them."""
    # With "+" the value is the estimator's, and the gradient that of k2.
    is_k2 = place == "loss" and str(estimator).endswith("+")
    ours = ESTIMATORS.get(str(estimator).removesuffix("+"))
    if not float(coefficient):
        return KeyOutcome("mapped", "", {"algorithm.kl.coefficient": 0.0})
    if ours is None:
        return KeyOutcome("refused", f"estimators are {', '.join(ESTIMATORS)} (given: {estimator})")
    settings: dict[str, Any] = {
        "algorithm.kl.coefficient": float(coefficient),
        "algorithm.kl.place": place,
        "algorithm.kl.estimator": "k2" if is_k2 else ours,
    }
    if adaptive:
        settings["algorithm.kl.adaptive"] = dict(adaptive)
    return KeyOutcome("mapped", "", settings)


NO_KL = KeyOutcome("mapped", "", {"algorithm.kl.coefficient": 0.0})


def lora_targets(named: Any) -> list[str] | None:
    """The matrices that get adapters, from their names in any of the systems; None where one is unknown."""
    if named in (None, "all-linear", ["all-linear"]):
        return list(LORA_TARGETS)
    words = named.replace(" ", "").split(",") if isinstance(named, str) else list(named)
    found: list[str] = []
    for word in words:
        matches = FUSED_TARGETS.get(word, (word,))
        if not set(matches) <= set(LORA_TARGETS):
            return None
        found += [name for name in matches if name not in found]
    return found


def lora(rank: Any, alpha: Any, targets: Any) -> KeyOutcome:
    if not rank or int(rank) <= 0:
        return KeyOutcome("ignored", "no adapters")
    found = lora_targets(targets)
    if found is None:
        return KeyOutcome("refused", f"adapters go to {', '.join(LORA_TARGETS)} (given: {targets})")
    section = {"rank": int(rank), "alpha": float(alpha), "targets": found}
    return KeyOutcome("mapped", "", {"trainer.lora": section})


def excluded(has_adapters: Callable[[Theirs], bool]) -> Convert:
    """Matrices that get no adapters: here a vision tower never has any, and others are not distinguished by layer."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        named = [value] if isinstance(value, str) else list(value or [])
        others = [word for word in named if not re.search("visual|vision", str(word))]
        if not others or not has_adapters(theirs):
            return KeyOutcome("ignored", LANGUAGE_ALONE)
        return KeyOutcome(
            "refused", "leave it out, and name the matrices that get adapters in target_modules"
        )

    return convert


def longest_sequence(prompt_key: str, answer_key: str) -> Convert:
    """The longest sequence of the engine, which ends an answer there."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        prompt, answer = int(theirs[prompt_key]), int(theirs[answer_key])
        if value is None or int(value) >= prompt + answer:
            return KeyOutcome("ignored", LENGTHS)
        return KeyOutcome(
            "noted",
            f"there a prompt and its answer have {value} tokens together; here an answer has up to {answer}"
            f" behind a prompt of up to {prompt}: give other lengths, where it should end earlier",
        )

    return convert


def every(value: Any, ours: str, steps: int | None) -> KeyOutcome:
    """Steps between two of a kind. What never happens there happens once here, at the end."""
    if value is not None and int(value) > 0:
        return KeyOutcome("mapped", "", {ours: int(value)})
    return KeyOutcome("noted", "there never; here once, at the end", {ours: steps or MAX_COUNT})


def reward_function(path: Any, name: Any, options: Mapping[str, Any], text: str = "") -> KeyOutcome:
    """A function in a file of theirs; services/reward/functions calls it as its author meant."""
    file = str(Path(str(path)).expanduser().absolute())
    rule: dict[str, Any] = {"weight": 1.0, "function": f"{file}:{name}"}
    if options:
        rule["options"] = dict(options)
    return KeyOutcome(
        "noted",
        f"it is code that a run names: start the run with `--allow {file}:{name}`{text}",
        {"reward.rules": {re.sub(r"\W", "_", str(name)): rule}},
    )


LENGTHS = "it is rollout.max_prompt_tokens + rollout.max_tokens"
LANGUAGE_ALONE = "adapters go to the language model's matrices alone"
TURNS = (
    "here `run.pools` says it: colocated pools take turns, and who waits gives its memory up; separate ones"
    " have devices of their own"
)
PADDING = "micro-batches are packed: there is no padding"
LIMIT = "trainer.micro_batch_tokens bounds each micro-batch, in passes for log-probabilities too"
ROOM = "there it makes room for the engine; leave it out where `trimaran plan` finds room"
MEMORY = (
    "there the trainer takes the rest of the device; here the engine is alone on it, in colocated pools"
    " while it is awake, and may have more (the default is 0.85)"
)
WHOLE = "answers are drawn from the whole distribution, which the loss takes as given: give "
NO_CRITIC = "there is no critic here"
NO_MODEL = "there is no reward model here: serve one over HTTP (docs/reward-plugins.md), and name it in reward.rules"
FOLDER = "the model, its tokenizer and its chat template are those of the model's folder"
DEVICE = "how it is computed follows from the model and the device"
REPORTS = "docs/observability.md has what each process reports"
ENGINE = "the engine's own default holds"
ROWS_OF_FILE = "rows are read one by one, counted and shuffled as the run goes"
GROUPS = "groups travel one by one, as soon as they are whole"
LAYOUT = "parameters are split as trainer.*_parallel says, and read from the model's folder"
MAIN_WEIGHTS = (
    "updates are added to weights in float32. trainer.optimizer: adamw_bf16 keeps weights in bfloat16, and what"
    " rounding took, in less memory"
)
GRADIENTS = "ranks add their gradients up in float32"
AHEAD = (
    "here the rate may be one step ahead: steps count from 1 here, and from 0 there, where a warm-up begins with a"
    " rate of 0"
)


def in_float32(text: str) -> Convert:
    """A key that names a type of numbers: noted where it is not float32."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        is_same = value is None or type_name(value) == "float32"
        return KeyOutcome("ignored" if is_same else "noted", text)

    return convert


def computed_in(engines_key: str) -> Convert:
    """The trainer's type of numbers, which is refused where `engines_key` has another one."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        text = "trainer and engine compute in one type, model.dtype"
        engines = type_name(theirs[engines_key])
        if value is None or type_name(value) == engines:
            return KeyOutcome("ignored", text)
        return KeyOutcome("refused", f"{text}: give {engines}, or {engines_key}={value} too")

    return convert


def type_name(value: Any) -> str:
    """Example: type_name("bf16") == "bfloat16"."""
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "32": "float32"}
    word = str(value).removeprefix("torch.")
    return names.get(word, word)


def absolute(path: Any) -> str:
    return str(Path(str(path)).expanduser().absolute())


def offload_reference(has_kl: bool, has_adapters: bool, value: Any) -> KeyOutcome:
    if not is_on(value) or not has_kl or has_adapters:
        return KeyOutcome("ignored", "the reference stays on the device, or there is none")
    return KeyOutcome("mapped", "", {"algorithm.kl.offload": True})


def dynamic_sampling(tries: int, share: float, text: str, **more: Any) -> KeyOutcome:
    """Groups whose rewards are equal are replaced. `tries`: theirs, each of a `share` of a batch; 0 for any number."""
    most = 1000.0 if tries <= 0 else min(1000.0, max(1.0, tries * share - 1))
    settings = {"algorithm.dynamic_sampling": {"max_replaced": most, **more}}
    return KeyOutcome("noted", text, settings)


def least_rate(rate_key: str) -> Convert:
    """A share of the learning rate."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value is None:
            return NOT_SET
        rate = float(value) * float(theirs[rate_key])
        return KeyOutcome("mapped", "", {"trainer.min_learning_rate": rate} if rate else {})

    return convert


def schedule(*names: str) -> Convert:
    """How the rate falls."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value is None:
            return NOT_SET
        if value not in names:
            return KeyOutcome("refused", f"give one of {', '.join(names)}")
        fate: Fate = "mapped" if value == "constant" else "noted"
        return KeyOutcome(fate, "" if fate == "mapped" else AHEAD, {"trainer.schedule": value})

    return convert


def hosts(value: Any, theirs: Theirs) -> KeyOutcome:
    if int(value) == 1:
        return KeyOutcome("mapped")
    if theirs.in_turns:
        text = "run.pools=colocated: turns are taken on one host; leave the word out, or give 1"
        return KeyOutcome("refused", text)
    return KeyOutcome(
        "noted", "several hosts: give network.subnet, and start it as docs/deploy.md says"
    )


def is_validated(theirs: Theirs, every_key: str) -> bool:
    switches = ("trainer.val_before_train", "trainer.val_only")
    return int(theirs[every_key] or 0) > 0 or any(theirs.is_on(key) for key in switches)


def logged(value: Any, theirs: Theirs) -> KeyOutcome:
    """Where a sink is named that can show them."""
    number = min(int(value or 0), MOST_LOGGED)
    if number <= 0:
        return KeyOutcome("ignored", "not asked for")
    named = loggers(theirs["trainer.logger"], theirs).settings.get("metrics.sinks")
    if not named:
        return KeyOutcome("ignored", "no sink is named; samples/ has the answers to all prompts")
    return KeyOutcome("mapped", "", {"validation.logged": number})


def top_p_of_validation(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or float(value) == 1:
        return KeyOutcome("ignored", "all tokens, as here without the key")
    if not 0 < float(value) < 1:
        return KeyOutcome("refused", "give a number above 0 and at most 1")
    return KeyOutcome("mapped", "", {"validation.top_p": float(value)})


def top_k_of_validation(value: Any, theirs: Theirs) -> KeyOutcome:
    if value is None or int(value) < 1:
        return KeyOutcome("ignored", "all tokens, as here")
    return KeyOutcome("noted", "samples are drawn from all tokens; validation.top_p bounds them")


def samples(number: Any, temperature: Any, is_greedy: bool) -> KeyOutcome:
    """Completions of a held-out prompt, besides the one at temperature 0 that there always is."""
    if is_greedy or (temperature is not None and not float(temperature)):
        return KeyOutcome("mapped", "", {"validation.samples": 0, "validation.final_samples": 0})
    settings: dict[str, Any] = {
        "validation.samples": int(number),
        "validation.final_samples": int(number),
    }
    if temperature is not None:
        settings["validation.temperature"] = float(temperature)
    return KeyOutcome("mapped", "", settings)


def warm_up_share(share: float, steps: int | None, total_key: str) -> int:
    """The number of the run's steps. Raises InputError where these are not known."""
    if share and not steps:
        raise InputError(
            f"it is a share of the run's steps, which are not known here: bring the training file, or give {total_key}=N"
        )
    return int(share * (steps or 0))


def warm_up(steps: int) -> KeyOutcome:
    """The steps of a schedule that counts its steps from 0."""
    settings = {"trainer.warmup_steps": steps}
    return KeyOutcome("noted", AHEAD, settings) if steps > 0 else KeyOutcome("mapped", "", settings)


def kept(most: Any, steps: Any, every_steps: Any) -> KeyOutcome:
    """Checkpoints: so many, or all that a run makes."""
    if most is not None and int(most) > 0:
        return KeyOutcome("mapped", "", {"run.keep_checkpoints": int(most)})
    often = int(every_steps or 0)
    if often > 0 and not steps:
        text = "there all are kept; how many that are is not known here, so the newest is"
        return KeyOutcome("noted", text, {"run.keep_checkpoints": 1})
    number = math.ceil(int(steps or 1) / often) if often > 0 else 1
    return KeyOutcome("mapped", "", {"run.keep_checkpoints": number})
