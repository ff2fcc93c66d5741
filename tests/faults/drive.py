"""The seeded fault driver: `python -m tests.faults.drive --seed 1 --count 200 --engine stand-in`.

Real processes, real gRPC, real transports; one fault after another, each made in
the middle of a publication; after each the house must heal by itself. Ends with
a report, and with exit code 1 when an invariant broke.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}
os.environ.update(ENVIRONMENT)  # before torch, here and in the processes that are forked

from tests.faults import faults, house, oracle, processes  # noqa: E402
from tests.faults.audit import Audit  # noqa: E402
from tests.faults.faults import Case  # noqa: E402
from tests.faults.house import (  # noqa: E402
    STAND_IN_SETTINGS,
    VLLM_SETTINGS,
    House,
    Setting,
    make_house,
)
from tests.faults.stand import Stand  # noqa: E402
from tests.faults.witness import Witness  # noqa: E402
from tests.marked import MARK  # noqa: E402


@dataclass(slots=True)
class Report:
    seed: int
    engine: str
    folder: Path
    only: str = ""
    made: list[Case] = field(default_factory=list)
    missed: list[Case] = field(default_factory=list)
    """Their moment never came; not counted."""
    recoveries: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_trained: int = 0
    num_spoilt: int = 0
    num_refused: int = 0
    wrong: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.wrong or self.hangs or self.broken or self.left)

    def lines(self, seconds: float) -> Iterator[str]:
        yield (
            f"{len(self.made)} faults in {seconds:.0f} s, engine {self.engine}, seed {self.seed},"
            f" logs in {self.folder}"
        )
        counts = Counter(str(case) for case in self.made)
        for case, number in sorted(counts.items()):
            yield f"  {number:4d}  {case}"
        if self.missed:
            names = Counter(map(str, self.missed))
            yield f"moments that never came (not counted): {dict(names)}"
        if self.recoveries:
            yield (
                f"recovery: median {median(self.recoveries):.2f} s,"
                f" longest {max(self.recoveries):.2f} s"
            )
        yield f"hangs: {len(self.hangs)}"
        yield (
            f"tokens checked: {self.num_tokens} ({self.num_trained} trained;"
            f" {self.num_spoilt} foreseen wrong ones of spoilt engines, {self.num_refused} spoilt groups"
            " reissued)"
        )
        yield f"tokens from unproven weights: {len(self.wrong)}"
        yield f"processes left: {len(self.left)}"
        for kind in ("wrong", "hangs", "broken", "left"):
            for what in getattr(self, kind):
                yield f"BROKEN ({kind}): {what}"


async def drive(report: Report, count: int, settings: list[Setting], model: Path) -> None:
    dice = random.Random(report.seed)
    seen: Counter[Case] = Counter()
    counts = shares(count, len(settings))
    for number, share in enumerate(counts):
        setting, later = settings[number], settings[number + 1 : len(counts)]
        home = await make_house(report.folder / f"part-{number}", setting, report.seed, model)
        print(f"part {number}: {setting}", flush=True)
        try:
            await home.open()
            await part(report, home, later, share, dice, seen)
        except Exception as error:
            report.broken.append(f"part {number} ({setting}): {type(error).__name__}: {error}")
            traceback.print_exc()
        finally:
            report.left += [f"part {number}: {name}" for name in await home.close()]
        report.left += processes.survivors(str(report.folder))


async def part(
    report: Report,
    home: House,
    later: list[Setting],
    count: int,
    dice: random.Random,
    seen: Counter[Case],
) -> None:
    config = home.config
    kinds = {"stand-in": oracle.ChecksumOracle, "vllm": oracle.LogprobOracle}
    truth = kinds[report.engine](config.model.path, config.model.dtype, config.run.seed)
    judge = oracle.Judge(truth)
    audit = Audit(home.run_folder, judge)
    stand = Stand(home, judge, audit)
    witness = Witness(home, judge, lambda: stand.caller)
    asking = asyncio.create_task(witness.run())
    try:
        await stand.start_controller()
        await stand.recover()
        made = 0
        while made < count:
            case = faults.choose(home.setting, later, report.only, seen, dice)
            seen[case] += 1
            made += await one_fault(report, stand, case, dice)
            if asking.done():
                asking.result()
            if judge.wrong or audit.wrong or witness.hangs:
                break
        report.broken += home.grown()
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await audit.close()
        report.num_tokens += judge.num_tokens
        report.num_trained += audit.num_trained
        report.num_spoilt += judge.num_spoilt
        report.num_refused += len(audit.reissued)
        report.wrong += judge.wrong + audit.wrong
        report.hangs += witness.hangs + stand.hangs


async def one_fault(report: Report, stand: Stand, case: Case, dice: random.Random) -> int:
    """1 when it was made."""
    begun = time.monotonic()
    made = await case.act(stand, case, dice)
    seconds = await stand.recover()
    stand.house.note_usage()
    (report.made if made else report.missed).append(case)
    report.recoveries.append(seconds)
    print(
        f"{len(report.made):4d} {case}{'' if made else ' (its moment never came)'}:"
        f" {time.monotonic() - begun:.2f} s, of which recovery {seconds:.2f} s",
        flush=True,
    )
    return int(made)


def shares(count: int, parts: int) -> list[int]:
    """How many faults each part makes; as few parts as make at least five each."""
    parts = max(1, min(parts, count // 5))
    return [count // parts + (number < count % parts) for number in range(parts)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--engine", choices=("stand-in", "vllm"), default="stand-in")
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument("--json", action="store_true", help="the figures as one last JSON line")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="trimaran-faults-"))
    logging.basicConfig(level=logging.WARNING)
    if arguments.engine == "vllm":
        from tests.tiny_model import write_tiny_model

        settings, model = VLLM_SETTINGS, write_tiny_model(folder / "model")
    else:
        settings, model = STAND_IN_SETTINGS, house.write_model(folder / "model")
    os.environ[MARK] = str(folder)
    processes.preload(["tests.faults.children"])
    report = Report(arguments.seed, arguments.engine, folder, arguments.only)
    started = time.monotonic()
    asyncio.run(drive(report, arguments.count, settings, model))
    print(*report.lines(time.monotonic() - started), sep="\n")
    if arguments.json:
        kinds = sorted({case.kind for case in report.made})
        print(json.dumps({"kinds": kinds, "trained": report.num_trained}))
    if report.good:
        shutil.rmtree(folder)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
