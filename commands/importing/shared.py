"""Conversions that more than one system's table has."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commands.importing.rows import (
    NOT_SET,
    Convert,
    KeyOutcome,
    KeyRow,
    Theirs,
    becomes,
    deny,
    is_on,
    nothing,
    only,
    own,
    same,
    switch,
    under,
)
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
NO_DISCOUNT = "there is no discount here: give 1"
NO_MODEL = "there is no reward model here: serve one over HTTP (docs/reward-plugins.md), and name it in reward.rules"
FOLDER = "the model, its tokenizer and its chat template are those of the model's folder"
DEVICE = "how it is computed follows from the model and the device"
REPORTS = "docs/observability.md has what each process reports"
ENGINE = "the engine's own default holds"
ROWS_OF_FILE = "rows are read one by one, counted and shuffled as the run goes"
GROUPS = "groups travel one by one, as soon as they are whole"
LAYOUT = "parameters are split as trainer.*_parallel says, and read from the model's folder"
ALL_GROUPS = nothing("every group trains")
MAIN_WEIGHTS = (
    "updates are added to weights in float32. trainer.optimizer: adamw_bf16 keeps weights in bfloat16, and what"
    " rounding took, in less memory"
)
AHEAD = (
    "here the rate may be one step ahead: steps count from 1 here, and from 0 there, where a warm-up begins with a"
    " rate of 0"
)


def updates_of(batch: int, mini: int, what: str) -> KeyOutcome:
    """A step's `batch` prompts in updates of `mini` prompts."""
    if mini <= batch and batch % mini == 0:
        return becomes({"algorithm.updates_per_batch": batch // mini})
    return deny(
        f"{batch} prompts of a step are no whole number of updates of {mini}; give a {what} that divides {batch}"
    )


def steps_of(total: Any, epochs: Any, batch: Any, files: Any, total_key: str) -> KeyOutcome:
    """`total` steps, or those of `epochs` over the rows of `files`, which the run counts where they are not here."""
    if total is not None:
        return becomes({"run.steps": int(total)})
    paths = paths_of(files)
    rows = rows_of(paths)
    if rows is None:
        return becomes(
            {"run.epochs": int(epochs)},
            f"the rows of the training file cannot be counted here, so the run counts them: epochs x rows // {batch}"
            f" steps. There the rest of each epoch is dropped; {total_key}=N gives another number",
        )
    if rows < int(batch):
        return deny(f"{', '.join(paths)}: {rows} rows, less than the {batch} prompts of a step")
    steps = int(epochs) * (rows // int(batch))
    text = f"{epochs} epochs of {rows} rows // {batch} = {steps} steps; rows that are too long count too"
    return becomes({"run.steps": steps}, text)


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


def training_file(key: str) -> Convert:
    """Files with prompts. What is no path of a file is refused."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if not value:
            return deny(f"give {key}=FILE")
        outcome = _files("data.train", key, value)
        paths = paths_of(value)
        if outcome.fate == "refused" or len(paths) == 1:
            return outcome
        weights, text = _mixed(paths, theirs.is_on("data.shuffle"))
        pairs = zip(outcome.settings["data.train"], weights, strict=True)
        mixed = [{"path": path, "weight": weight} for path, weight in pairs]
        return becomes({"data.train": mixed}, "; ".join(filter(None, (outcome.text, text))))

    return convert


def validation_file(every_key: str, **more: Any) -> Convert:
    """Held-out rows, where theirs looks at them. `more`: keys of our section `validation`."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        switches = ("trainer.val_before_train", "trainer.val_only")
        is_validated = int(theirs[every_key] or 0) > 0 or any(map(theirs.is_on, switches))
        if not value or not is_validated:
            return nothing("nothing is validated")
        outcome = _files("data.validation", "data.val_files", value)
        if outcome.fate == "refused":
            return outcome
        sizes = {f"validation.{name}": number for name, number in more.items()}
        return becomes({**outcome.settings, **sizes}, outcome.text)

    return convert


def _files(ours: str, key: str, value: Any) -> KeyOutcome:
    paths = paths_of(value)
    away = [path for path in paths if not Path(path).exists()]
    if hub := [path for path in away if "@" in Path(path).name]:
        return deny(
            f"{', '.join(hub)}: a data set of the hub; fetch it with `hf download`, make a file of it with"
            f" `trimaran data prepare`, and give {key}=FILE"
        )
    found = [str(Path(path).absolute()) for path in paths]
    note = f"{', '.join(away)}: not here now" if away else ""
    return becomes({ours: found[0] if len(found) == 1 else found}, note)


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
    return weights, "" if shuffled else "there one file follows the other; here they are mixed"


def image_key(value: Any, theirs: Theirs) -> KeyOutcome:
    """The column of images, where the rows have it: ours is given for rows with images alone."""
    files = paths_of(theirs["data.train_files"])
    known = [names for file in files if (names := column_names(file)) is not None]
    if any(value not in names for names in known):
        return nothing("the rows have no such column")
    if not known and "data.image_key" not in theirs.given:
        return nothing("not asked for")
    text = "the file is not here: give ~data.image_key if its rows have no such column"
    return becomes({"data.image_key": value}, "" if known else text)


def model_folder(value: Any, theirs: Theirs) -> KeyOutcome:
    if not value:
        return deny("name the model's folder")
    settings = {"model.path": absolute(value)}
    if Path(settings["model.path"]).is_dir():
        return becomes(settings)
    is_on_hub = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(value))
    fetch = f" (`hf download {value} --local-dir {value}`)" if is_on_hub else ""
    return becomes(
        settings,
        f"{value} is no folder here: a run takes a folder in Hugging Face's form, so fetch it there{fetch}, or give"
        " model.source",
    )


def absolute(path: Any) -> str:
    return str(Path(str(path)).expanduser().absolute())


def project_name(value: Any) -> str:
    """With the characters that `metrics.project` may have."""
    return re.sub(r"[^\w. -]+", "-", str(value)).strip("-. ")


def run_name(value: Any) -> str | None:
    """With the characters that `run.name` may have; None where nothing is left."""
    return re.sub(r"[^\w.-]+", "-", str(value)).strip("-.") or None


def above(least: int) -> Callable[[Any], int | None]:
    """A number, or None where it is not above `least`."""
    return lambda value: int(value) if int(value) > least else None


def below_1(value: Any) -> float | None:
    """A share, or None where it is all."""
    return float(value) if float(value) < 1 else None


def loggers(value: Any, theirs: Theirs) -> KeyOutcome:
    if "trainer.logger" not in theirs.given:
        return nothing("not asked for")
    named = [value] if isinstance(value, str) else list(value or [])
    sinks = [name for name in named if name in SINKS.names()]
    others = [name for name in named if name not in (*WRITTEN, *sinks)]
    if not sinks and not others:
        return nothing("every run writes these")
    text = f"{', '.join(others)}: not written here; every run writes {', '.join(WRITTEN)}"
    return becomes({"metrics.sinks": sinks} if sinks else {}, text if others else "")


def kl_in(place: str, coefficient: Any, estimator: Any) -> KeyOutcome:
    """The section algorithm.kl."""
    # With "+" the value is the estimator's, and the gradient that of k2.
    is_k2 = place == "loss" and str(estimator).endswith("+")
    ours = ESTIMATORS.get(str(estimator).removesuffix("+"))
    if not float(coefficient):
        return NO_KL
    if ours is None:
        return deny(f"estimators are {', '.join(ESTIMATORS)} (given: {estimator})")
    return becomes(
        {
            "algorithm.kl.coefficient": float(coefficient),
            "algorithm.kl.place": place,
            "algorithm.kl.estimator": "k2" if is_k2 else ours,
        }
    )


NO_KL = becomes({"algorithm.kl.coefficient": 0.0})


def loss(
    losses: Mapping[str, Mapping[str, str]],
    types: Mapping[str, str],
    section: str,
    notes: Mapping[str, str],
) -> Convert:
    """`losses`: our loss -> its options and their keys of `section`. `types`: their name -> ours, which has one of
    the `notes` where it differs."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value not in types:
            return deny(f"losses are {', '.join(types)} (given: {value})")
        options = losses[types[value]].items()
        numbers = {option: float(theirs[f"{section}.{key}"]) for option, key in options}
        settings = {"algorithm.loss": {"type": types[value], **numbers}}
        return becomes(settings, notes.get(types[value], ""))

    return convert


def lora(rank: Any, alpha: Any, named: Any) -> KeyOutcome:
    """`named`: the matrices that get adapters, by their names in any of the systems."""
    if not rank or int(rank) <= 0:
        return nothing("no adapters")
    words = named.replace(" ", "").split(",") if isinstance(named, str) else list(named)
    if words == ["all-linear"]:
        words = list(LORA_TARGETS)
    found = [name for word in words for name in FUSED_TARGETS.get(word, (word,))]
    if not set(found) <= set(LORA_TARGETS):
        return deny(f"adapters go to {', '.join(LORA_TARGETS)} (given: {named})")
    return becomes({"trainer.lora": {"rank": int(rank), "alpha": float(alpha), "targets": found}})


def excluded(value: Any, theirs: Theirs) -> KeyOutcome:
    """Matrices that get no adapters: here a vision tower never has any, and others are not distinguished by layer."""
    named = [value] if isinstance(value, str) else list(value or [])
    if all(re.search("visual|vision", str(word)) for word in named):
        return nothing("adapters go to the language model's matrices alone")
    return deny("leave it out, and name the matrices that get adapters in target_modules")


def longest_sequence(prompt_key: str, answer_key: str) -> Convert:
    """The longest sequence of the engine, which ends an answer there."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        prompt, answer = int(theirs[prompt_key]), int(theirs[answer_key])
        if value is None or int(value) >= prompt + answer:
            return nothing("it is rollout.max_prompt_tokens + rollout.max_tokens")
        text = (
            f"there a prompt and its answer have {value} tokens together; here an answer has up to {answer} behind"
            f" a prompt of up to {prompt}: give other lengths, where it should end earlier"
        )
        return becomes({}, text)

    return convert


def reward_function(path: Any, name: Any, options: Mapping[str, Any]) -> KeyOutcome:
    """A function in a file of theirs; services/reward/functions calls it as its author meant."""
    function = f"{absolute(path)}:{name}"
    rule: dict[str, Any] = {"weight": 1.0, "function": function}
    if options:
        rule["options"] = dict(options)
    text = f"it is code that a run names: start the run with `--allow {function}`"
    return becomes({"reward.rules": {re.sub(r"\W", "_", str(name)): rule}}, text)


def in_float32(text: str) -> Convert:
    """A type of numbers, which is noted where it is another one."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        is_same = value is None or type_name(value) == "float32"
        return nothing(text) if is_same else becomes({}, text)

    return convert


def type_name(value: Any) -> str:
    """Example: type_name("bf16") == "bfloat16"."""
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    word = str(value).removeprefix("torch.")
    return names.get(word, word)


def offload_reference(value: Any, kl: KeyOutcome, has_adapters: bool) -> KeyOutcome:
    """`kl`: what became of the KL term."""
    if not is_on(value) or not kl.settings.get("algorithm.kl.coefficient") or has_adapters:
        return nothing("the reference stays on the device, or there is none")
    return becomes({"algorithm.kl.offload": True})


def dynamic_sampling(tries: int, share: float, text: str, **more: Any) -> KeyOutcome:
    """Groups whose rewards are equal are replaced. `tries`: theirs, each of a `share` of a batch; 0 for any number."""
    most = 1000.0 if tries <= 0 else min(1000.0, max(1.0, tries * share - 1))
    return becomes({"algorithm.dynamic_sampling": {"max_replaced": most, **more}}, text)


def schedule(*names: str) -> Convert:
    """How the rate falls."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value is None:
            return NOT_SET
        if value not in names:
            return deny(f"give one of {', '.join(names)}")
        return becomes({"trainer.schedule": value}, "" if value == "constant" else AHEAD)

    return convert


def warm_up(number: Any, share: Any, steps: int | None, total_key: str) -> KeyOutcome:
    """`number` of a schedule's steps, which counts them from 0; without it a `share` of the run's."""
    warmup = int(number or 0)
    if warmup <= 0 and float(share or 0):
        if not steps:
            raise InputError(
                "it is a share of the run's steps, which are not known here: bring the training file, or give"
                f" {total_key}=N"
            )
        warmup = int(float(share) * steps)
    return becomes({"trainer.warmup_steps": max(0, warmup)}, AHEAD if warmup > 0 else "")


def logged(value: Any, theirs: Theirs) -> KeyOutcome:
    """Where a sink is named that can show them."""
    number = min(int(value or 0), MOST_LOGGED)
    has_sink = "metrics.sinks" in loggers(theirs["trainer.logger"], theirs).settings
    if number <= 0 or not has_sink:
        return nothing("no sink shows them; samples/ has the answers to all prompts")
    return becomes({"validation.logged": number})


def samples(number: Any, temperature: Any, is_greedy: bool = False) -> KeyOutcome:
    """Completions of a held-out prompt, besides the one at temperature 0 that there always is."""
    is_greedy = is_greedy or (temperature is not None and not float(temperature))
    drawn = 0 if is_greedy else int(number)
    settings: dict[str, Any] = {"validation.samples": drawn, "validation.final_samples": drawn}
    if drawn and temperature is not None:
        settings["validation.temperature"] = float(temperature)
    return becomes(settings)


def kept(most: Any, steps: Any, every_steps: Any) -> KeyOutcome:
    """Checkpoints: so many, or all that a run makes."""
    often = int(every_steps or 0)
    if most is not None and int(most) > 0:
        return becomes({"run.keep_checkpoints": int(most)})
    if often > 0 and not steps:
        text = "there all are kept; how many that are is not known here, so the newest is"
        return becomes({"run.keep_checkpoints": 1}, text)
    number = math.ceil(int(steps or 1) / often) if often > 0 else 1
    return becomes({"run.keep_checkpoints": number})


def _every(ours: str, steps: Callable[[Theirs], int | None]) -> Convert:
    """Steps between two of a kind. What never happens there happens once here, at the end."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value is not None and int(value) > 0:
            return becomes({ours: int(value)})
        return becomes({ours: steps(theirs) or MAX_COUNT}, "there never; here once, at the end")

    return convert


def _hosts(value: Any, theirs: Theirs) -> KeyOutcome:
    if int(value) == 1:
        return becomes({})
    if theirs.in_turns:
        return deny(
            "run.pools=colocated: turns are taken on one host; leave the word out, or give 1"
        )
    return becomes({}, "several hosts: give network.subnet, and start it as docs/deploy.md says")


def run_rows(
    steps: Convert,
    epochs: int,
    project: str,
    run: str,
    test: str,
    keep: str,
    folder: str,
    show: str,
) -> tuple[KeyRow, ...]:
    """The section `trainer` of verl and of EasyR1, which differ in some names."""

    def number(theirs: Theirs) -> int | None:
        return known_steps(steps(theirs["trainer.total_epochs"], theirs))

    critic = f"{NO_CRITIC}, in whose first steps the policy stands still: give 0"
    return under(
        "trainer",
        own("total_epochs", epochs, steps),
        same("project_name", "metrics.project", project, project_name),
        same("experiment_name", "run.name", run, run_name),
        own("logger", ["console", "wandb"], loggers),
        own("nnodes", 1, _hosts),
        own("save_freq", -1, _every("run.checkpoint_every", number)),
        own(
            keep,
            None,
            lambda value, theirs: kept(value, number(theirs), theirs["trainer.save_freq"]),
        ),
        same(folder, "run.checkpoints", None, absolute),
        own(test, -1, _every("validation.every", number)),
        same("val_before_train", "validation.before_train", True, is_on),
        switch("val_only", "validation.only", True),
        own(show, 0, logged),
        only("critic_warmup", (0, 1), critic),
    )
