"""docs/migrating.md, from the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commands.importing.conversion import System
from commands.importing.dataset_files import DATASET_FILES
from commands.importing.guides import JOBS, LAUNCHING, SWITCHES, Replaced
from commands.importing.rows import Row
from commands.importing.systems import SYSTEMS
from trimaran.telemetry.other_names import LEFT_OUT, NAMES
from trimaran.telemetry.validation_names import VALIDATION_NAMES

HEAD = """\
# From verl, EasyR1 and MindSpeed-RL

Written by `python -m commands.importing > docs/migrating.md` from the tables in `commands/importing/`.

A run of one of these projects becomes one of ours by one command:

```sh
trimaran data prepare geo3k --from downloads/geometry3k -o data/geo3k
trimaran import easyr1 ~/EasyR1/examples/qwen2_5_vl_7b_geo3k_grpo.sh data.train_files=data/geo3k/train.parquet \\
    data.val_files=data/geo3k/test.parquet worker.actor.model.model_path=models/Qwen2.5-VL-7B-Instruct -o run.yaml
trimaran import verl run_qwen2-7b.sh actor_rollout_ref.rollout.n=8 -o run.yaml
trimaran import mindspeed-rl grpo_qwen25_7b_A3.yaml megatron_training.data_path=math17k.parquet -o run.yaml
trimaran plan run.yaml                  # what it takes of devices and hosts, before it starts
trimaran train run.yaml
```

It reads a YAML file, the `.hydra/config.yaml` that a run of verl has written, or a script that starts verl or EasyR1.
Of a script nothing is run: its variables and arrays are put in, and what it takes from the environment is taken from
yours. Of `if`, `case`, `&&` and `||` the branch counts that the script would take, where it tests texts and numbers that are known.
What hangs on files, on a loop or on the output of a command is not known (but `$(date +FORMAT)`, which is now). Functions are
followed where they are called. Other files that the script reads (`source`) are not; the import says which. Where a name is set so, its value in
your environment counts; without one the command names it. Most of verl's scripts ask the host for its
device and need one word for that: `DEVICE=gpu trimaran import verl run_qwen3_8b_fsdp.sh …`.
Words behind the file set their keys, as in Hydra: `key=value`, `+key=value`, and `~key` takes away one that is given. A section as
a value, `key={a:1,b:2}`, is laid over the section that is there.

**Devices.** In all three projects the same devices train and generate in turns. Here each pool has devices of its own by default,
and the import shares theirs out, half to each. With the word `run.pools=colocated` behind the file the run takes turns as theirs does,
on as many devices ([parallelism.md](parallelism.md#colocated-pools)). The command prints how many devices train and how many
generate either way. Turns need one host and `run.max_lag: 0`, and the launcher `local`, alone or under a manager.

Each key is one of these:

- **mapped**: it became a key of ours with the same meaning;
- **mapped with a note**: it became one, and something differs that you should know. The command prints it;
- **ignored**: it has no meaning here, and nothing is lost. The new file names each in a comment, with the reason;
- **refused**: to leave it out would change what is trained. Nothing is written before you give another value or `~key`;
- **unknown**: it stands in no table. It counts as refused, and the nearest known key is printed.

The last line that the command prints counts the keys of each kind. A key that a file does not have counts with the project's
own default, not with ours. The new file has passed the check that each run's file has to pass.

The examples of GSM8K and Geometry3k of verl, EasyR1, MindSpeed-RL and MindSpeed-MM are imported by our tests, with the values that
their projects published, and run for three steps with tiny models.

## What is counted how

All four projects have a batch of prompts for each step, answer each prompt n times, and cut the batch into updates. They count differently:

| | Trimaran | verl | EasyR1 | MindSpeed-RL |
|---|---|---|---|---|
| prompts of a step | `run.groups_per_step` | `data.train_batch_size` | `data.rollout_batch_size` | `global_batch_size` |
| answers to a prompt | `rollout.group_size` | `rollout.n` | `worker.rollout.n` | `n_samples_per_prompt` |
| one update | `algorithm.updates_per_batch` parts of a step | `ppo_mini_batch_size` prompts | `worker.actor.global_batch_size` prompts | `mini_batch_size` prompts |
| one forward pass of a rank | `trainer.micro_batch_tokens` packed tokens | `ppo_micro_batch_size_per_gpu` sequences, or `ppo_max_token_len_per_gpu` tokens | `micro_batch_size_per_device_for_update` sequences | `micro_batch_size` sequences, or `update_max_packing_token_size` tokens |
| one step | `run.steps` of them, or those of `run.epochs` | a batch; `total_epochs` goes through the rows | the same | `train_iters` of them |

EasyR1's well-known example: 256 prompts x 6 answers are 1,536 sequences, 192 for each of 8 devices. `global_batch_size: 64` is 64
prompts, so 384 sequences or 48 for each device, and 256 / 64 = 4 updates. With 2 sequences in a forward pass a device makes 24 of
them for an update. Here that is `groups_per_step: 256`, `group_size: 6`, `updates_per_batch: 4` and `micro_batch_tokens: 8288`, as 2
sequences have at most 2 x (2048 + 2096) tokens. When fewer devices train, each has more forward passes, and the update is the same.

**The mean over tokens.** EasyR1, MindSpeed-RL and older versions of verl take the mean over the tokens of a micro-batch, and then
the mean over micro-batches. Here `token_mean` is over all tokens of an update, whatever the micro-batches are (as in DAPO, and in verl since
2026). The two are equal where all micro-batches have equally many tokens.
"""


STEPS = """\

## What is typed

The guides' code blocks, counted for one host with Ubuntu and without what is optional there, and what does the same here: six or seven
commands, from a checkout to a trained model. Before the last one, `trimaran plan run.yaml` and `trimaran doctor run.yaml` say whether it will go.
What needs an NPU nobody has run."""
GUIDES = (
    "Qwen2.5-VL (MindSpeed-MM)",
    "Qwen3-VL (MindSpeed-MM on verl)",
    "GRPO (MindSpeed-RL)",
    "installation and Ray GRPO (MindSpeed-RL)",
    "Qwen2.5-VL (EasyR1)",
)
"""The five that `JOBS` counts."""


FIGURES = """\

## Their figures

`metrics: {also: [verl, mindspeed-rl]}` writes a step's numbers by these names too, in the same rows of `metrics.jsonl`, in
TensorBoard and at the sinks. A name is left out where a step lacks what it is made of.

**What adds up.** With `run.max_lag: 0` phases follow one another, so `timing/all` is at least `timing/rollout` + `timing/old_log_p` +
`timing/reference_model` + `timing/update` + `timing/resharding_to_infer` + `timing/resharding_to_train` +
`timing/non_overlap_rule_reward`. With more, generation goes on while the trainer trains, and the sum may be more than the whole:
that is what it is for. In any run `timing/all` is at least `timing/old_log_p` + `timing/reference_model` + `timing/update` +
`timing/resharding_to_infer`.

**Tokens a second.** All formulas count prompt and completion tokens of every completion that came back, and divide by
the dies of the trainer **and** of all replicas. A card of Atlas A3 is two dies, so its figure is twice that of a die. MindSpeed-RL divides by the dies that do both in
turns, and with `log_max_throughput` takes the longest answer's length for all; verl divides by all GPUs. `e2e_tps` and `perf/throughput` are
our `controller/step/tokens_per_second_per_device`."""


PREPARATION = """\

## MindSpeed-RL's datasets

A file of its `configs/datasets` says how rows are prepared. `trimaran import mindspeed-rl configs/datasets/math_17k.yaml` prints the
`trimaran data prepare` that does the same; words behind the file set its keys (`input=FILE`). Rows stay rows here, in Parquet:
`megatron_training.data_path` of the run's import is that file."""


def markdown() -> Iterator[str]:
    """The lines of docs/migrating.md."""
    yield from HEAD.splitlines()
    yield from _jobs()
    yield from _replaced("Command lines, variables and steps of the guides", LAUNCHING)
    yield from _replaced("Switches", SWITCHES)
    yield from _figures()
    for system in SYSTEMS.values():
        yield from _system(system)
    yield from PREPARATION.splitlines()
    yield from _table(DATASET_FILES)


def _jobs() -> Iterator[str]:
    yield from STEPS.splitlines()
    yield ""
    yield "| what | " + " | ".join(GUIDES) + " | here |"
    yield "|---" * (len(GUIDES) + 2) + "|"
    for job in JOBS:
        cells = (job.qwen25_vl, job.qwen3_vl, job.grpo, job.ray_grpo, job.easyr1, job.ours)
        yield f"| {job.name} | {' | '.join(cells)} |"


def _replaced(title: str, table: Sequence[Replaced]) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    yield "| theirs | here |"
    yield "|---|---|"
    yield from (f"| {row.theirs} | {row.ours} |" for row in table)


def _figures() -> Iterator[str]:
    yield from FIGURES.splitlines()
    yield ""
    yield "| name | of | ours | how |"
    yield "|---|---|---|---|"
    for name in NAMES:
        ours = ", ".join(f"`{key}`" for key in name.keys)
        yield f"| `{name.name}` | {', '.join(name.schemes)} | {ours} | {name.text} |"
    for theirs, (ours, text) in VALIDATION_NAMES.items():
        names = ", ".join(f"`{one}`" for one in theirs.split(", "))
        yield f"| {names} | verl | `{ours}` | {text} |"
    yield ""
    yield "Left out:"
    yield ""
    yield from (f"- {names}: {reason}" for names, reason in LEFT_OUT.items())


def _system(system: System) -> Iterator[str]:
    yield ""
    yield f"## {system.title}"
    yield ""
    always = ", ".join(f"`{key}: {value}`" for key, value in system.always.items())
    yield f"`trimaran import {system.name}`. Always: {always}, because it has no such correction unless a key says so."
    yield "A key that ends in `.*` stands for all below it that have no row of their own."
    yield from _table(system)


def _table(system: System) -> Iterator[str]:
    yield ""
    yield "| key | default | becomes | how |"
    yield "|---|---|---|---|"
    yield from map(_line, system.rows)


def _line(row: Row) -> str:
    default = "" if row.default is None else f"`{_plain(row.default)}`"
    ours = ", ".join(f"`{key}`" for key in row.becomes.split(", ")) if row.becomes else ""
    return f"| `{row.key}` | {default} | {ours} | {row.text} |"


def _plain(value: object) -> str:
    """As YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
