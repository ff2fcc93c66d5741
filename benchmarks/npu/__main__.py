"""`python -m benchmarks.npu`: the guides' performance tables on the machines that they name. Nobody has run it.

python -m benchmarks.npu --list
python -m benchmarks.npu --plan                         every row's run.yaml, and does it fit? No NPU is needed
python -m benchmarks.npu qwen25-7b-a3                   the run, and its figures beside the published one
python -m benchmarks.npu qwen25-7b-a3 run.max_lag=1 --launcher ray      words for `trimaran train`
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import yaml

from benchmarks.npu.figures import LONGEST, figures, read_steps
from benchmarks.npu.models import CONFIGS
from benchmarks.npu.published import GUIDES, ROWS, Published
from benchmarks.npu.run_file import num_dies, run_config, run_tree
from commands.cli.inspect.plan_table import align
from commands.cli.main import main as trimaran_main
from trimaran.config import load_config

DIE_GIB = 64
"""Of an A2 or A3."""
FOLDER = Path(".cache/npu")
MODELS = Path("models")
DATA = {"mindspeed-rl": Path("data/math-17k"), "verl": Path("data/geo3k")}
"""As the guides have it; Qwen2.5-32B and Qwen3-8B also have DeepScaleR there: --data data/deepscaler."""
PREPARE = {
    "mindspeed-rl": "trimaran data prepare math-17k --from dapo-math-17k.parquet -o",
    "verl": "trimaran data prepare geo3k --from geometry3k -o",
}
TRIMARAN = (sys.executable, "-m", "commands.cli")


def table() -> Iterator[str]:
    """Each row, and why some are refused."""
    head = ("", "machine", "dies", "ours", "prompts", "answers", "lengths", "tokens/s/die")
    lines: list[tuple[str, ...]] = [head]
    for name, row in ROWS.items():
        ours = num_dies(run_config(name, row, MODELS / row.model, DATA[row.by]))
        sizes = (str(row.dies), str(ours), str(row.prompts), str(row.answers))
        lengths = f"{row.prompt_tokens}+{row.answer_tokens}"
        lines.append((name, row.machine, *sizes, lengths, f"{row.figure:g}"))
    yield from align(lines)
    yield ""
    yield "dies: of the published run, and of ours. Every row of ours is unrun. Refused by `trimaran plan`:"
    yield from (f"  {name}: {row.refused}" for name, row in ROWS.items() if row.refused)


def plan(names: Sequence[str], folder: Path, models: Path, data: Path | None) -> int:
    """Writes each run.yaml and plans it; 1 where one fits that the table calls refused, or the other way round."""
    num_wrong = 0
    for name in names:
        row = ROWS[name]
        path = write_run(name, row, folder, model_folder(row, models, folder), data)
        told = io.StringIO()
        with redirect_stdout(told), redirect_stderr(told):
            code = trimaran_main(["plan", str(path), "--device-memory", str(DIE_GIB)])
        is_refused = code != 0
        reason = f": {row.refused}" if is_refused and row.refused else ""
        print(f"{name}: {'refused' if is_refused else 'fits'}{reason}  {path}")
        if is_refused != bool(row.refused):
            num_wrong += 1
            print(told.getvalue(), file=sys.stderr)
    return int(num_wrong > 0)


def model_folder(row: Published, models: Path, folder: Path) -> Path:
    """The model's own; without it one that holds its sizes alone, which a plan takes."""
    if (models / row.model).is_dir():
        return models / row.model
    made = folder / "sizes" / row.model
    made.mkdir(parents=True, exist_ok=True)
    (made / "config.json").write_text(json.dumps(CONFIGS[row.model]), encoding="utf-8")
    (made / "model.safetensors.index.json").write_text('{"weight_map": {}}', encoding="utf-8")
    (made / "tokenizer.json").touch()
    return made


def write_run(name: str, row: Published, folder: Path, model: Path, data: Path | None) -> Path:
    """run.yaml, which has passed the check that each run's file has to pass."""
    data = (data or DATA[row.by]).resolve()
    run_config(name, row, model.resolve(), data)
    path = folder / name / "run.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = run_tree(name, row, model.resolve(), data)
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return path


def run(name: str, folder: Path, models: Path, data: Path | None, words: Sequence[str]) -> int:
    row = ROWS[name]
    model, rows = models / row.model, data or DATA[row.by]
    if not model.is_dir():
        print(
            f"error: {model} is not here; fetch the model to it, or name --models", file=sys.stderr
        )
        return 2
    if not (rows / "train.parquet").is_file():
        print(f"error: {rows} has no train.parquet: {PREPARE[row.by]} {rows}", file=sys.stderr)
        return 2
    path = write_run(name, row, folder, model, data)
    runs = folder / name / "runs"
    command = [*TRIMARAN, "train", str(path), f"run.folder={runs}", *words]
    ended = subprocess.run(command, check=False)
    if ended.returncode:
        return ended.returncode
    newest = max(runs.iterdir(), key=lambda one: one.stat().st_mtime)
    print("\n".join(report(name, newest)))
    return 0


def report(name: str, run_folder: Path) -> Iterator[str]:
    """Our figures beside the published one."""
    row, config = ROWS[name], load_config(run_folder / "config.yaml")
    dies, sequences = num_dies(config), config.run.groups_per_step * config.rollout.group_size
    made = figures(read_steps(run_folder), sequences, dies)
    per_card = 2 if row.machine == "A3" else 1
    yield f"{name} on {dies} dies (trainer {config.num_trainer_ranks}, replicas {config.num_rollout_devices})"
    yield from align(
        [
            ("tokens a second, by the formula of", "a die", "a card"),
            *((what, f"{value:.1f}", f"{value * per_card:.1f}") for what, value in made.items()),
            (f"published, by {row.by}'s", f"{row.figure:g}", f"{row.figure * per_card:g}"),
        ]
    )
    yield f"published: {GUIDES[row.by]}, on {row.dies} dies that train and generate in turns"
    if row.is_longest:
        yield f"its configuration leaves log_max_throughput on: compare with {LONGEST}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.npu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("row", nargs="?", choices=tuple(ROWS), metavar="ROW")
    parser.add_argument("--list", action="store_true", help="the rows and their published figures")
    parser.add_argument(
        "--plan", action="store_true", help="write run.yaml and plan it; of all rows without ROW"
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help=f"where runs go (default {FOLDER})"
    )
    parser.add_argument(
        "--models", type=Path, default=MODELS, help="folder with the models' folders"
    )
    parser.add_argument("--data", type=Path, help="folder with train.parquet")
    options, words = parser.parse_known_args(arguments)
    if words and (options.plan or options.list or not options.row):
        parser.error(f"{' '.join(words)}: words for `trimaran train` go with a ROW that runs")
    if options.plan:
        return plan(
            [options.row] if options.row else [*ROWS], options.folder, options.models, options.data
        )
    if options.row:
        return run(options.row, options.folder, options.models, options.data, words)
    print("\n".join(table()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
