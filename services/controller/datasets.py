"""The prompts of a run, and the order in which it meets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache

from trimaran.config import RunConfig
from trimaran.data.order import place_at
from trimaran.data.prompts import Dataset, ImageLimits, ImageSizes, open_datasets
from trimaran.host.call_thread import Disk
from trimaran.types import Prompt

NUM_PREPARED = 4
"""Prompts whose images are decoded and scaled at a time; docs/data.md says what memory each needs."""
READ_SECONDS = 600.0
"""For a prompt and its images, with those that stand before it; and to open a run's files."""


@cache
def _disk() -> Disk:
    """One of its own: what else runs in asyncio's threads does not wait behind a validation's images. Its threads start
    with the first read, not with the import, as a process that is forked after that has none of them."""
    return Disk("prompts", READ_SECONDS, num_threads=NUM_PREPARED)


async def open_prompts(config: RunConfig) -> tuple[TrainingPrompts, HeldOutPrompts]:
    """Those of a run, in a thread. Raises InputError as `TrainingPrompts.open`, and UnavailableError for a disk
    that hangs."""
    files = ", ".join(map(str, config.data.files))
    return await _disk().do(
        lambda: (TrainingPrompts.open(config), HeldOutPrompts.open(config)), files
    )


async def _read(dataset: Dataset, row: int) -> Prompt:
    context = copy_context()
    what = f"{dataset.section.path}: row {row + 1}"
    return await _disk().do(lambda: context.run(dataset.__getitem__, row), what)


@dataclass(frozen=True, slots=True)
class TrainingPrompts:
    """Which prompt each group has: a pure function of the run's seed and the group's number.

    Example: prompt = await TrainingPrompts.open(config).fetch(17)
    """

    datasets: Sequence[Dataset]
    shares: Sequence[int]
    """Their parts of the prompts, as `place_at` has them."""
    seed: int
    shuffle: bool = True

    @classmethod
    def open(cls, config: RunConfig) -> TrainingPrompts:
        """Raises InputError where a file is missing, empty or none of its format."""
        data = config.data
        sizes = ImageSizes.of(data, config.model.path)
        datasets = open_datasets(data.train, sizes, ImageLimits.of(config.rollout))
        shares = [section.weight for section in data.train]
        return cls(datasets, shares, config.run.seed, data.shuffle)

    def __len__(self) -> int:
        """Rows of all datasets."""
        return sum(map(len, self.datasets))

    def at(self, number: int) -> Prompt:
        """Raises InputError that names the row, and UnusableImageError."""
        dataset, row = self._place(number)
        return dataset[row]

    async def fetch(self, number: int) -> Prompt:
        """The same in a thread: files are read, and images are decoded and scaled. Raises UnavailableError, too."""
        return await _read(*self._place(number))

    def _place(self, number: int) -> tuple[Dataset, int]:
        lengths = [len(dataset) for dataset in self.datasets]
        dataset, row = place_at(number, lengths, self.shares, self.seed, self.shuffle)
        return self.datasets[dataset], row


@dataclass(frozen=True, slots=True)
class HeldOutPrompts:
    """The first `limit` prompts of the validation's datasets, of each in turn until it has no more."""

    datasets: Sequence[Dataset]
    places: Sequence[tuple[int, int]]
    """(dataset, row) of each."""

    @classmethod
    def open(cls, config: RunConfig) -> HeldOutPrompts:
        """Raises InputError as TrainingPrompts.open does."""
        data = config.data
        sizes = ImageSizes.of(data, config.model.path)
        datasets = open_datasets(data.validation, sizes, ImageLimits.of(config.rollout))
        lengths = [len(dataset) for dataset in datasets]
        return cls(datasets, tuple(take_turns(lengths, config.validation.max_prompts)))

    def __len__(self) -> int:
        return len(self.places)

    async def fetch(self, index: int) -> Prompt:
        """Raises InputError that names the row, UnusableImageError, and UnavailableError."""
        dataset, row = self.places[index]
        return await _read(self.datasets[dataset], row)


def take_turns(lengths: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """(dataset, row): a row of each dataset, then the next row of each that has one; `limit` in all.

    Example: list(take_turns([1, 3], 3)) == [(0, 0), (1, 0), (1, 1)]
    """
    num_taken = 0
    for row in range(max(lengths, default=0)):
        for dataset, length in enumerate(lengths):
            if row < length:
                if num_taken == limit:
                    return
                num_taken += 1
                yield dataset, row
