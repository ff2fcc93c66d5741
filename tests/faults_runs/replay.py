"""An undisturbed replay: the first weights and the recorded batches, one after the other, alone."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.policy import DTYPE_NAMES
from tests.faults.versions import DTYPES, Weights, llama_shapes
from tests.faults_runs.audit import Audit
from tests.faults_runs.standins import move
from trimaran.config import RunConfig
from trimaran.model.folder import read_model_folder
from trimaran.types import ScoredGroup, TensorInfo, VersionId
from weights.sending.snapshot import TensorPart, take_snapshot
from weights.version.grid import cut_tensors


class Alone:
    """A policy without ranks, processes or weight sync."""

    def __init__(self, config: RunConfig) -> None:
        facts = read_model_folder(config.model.path)
        shapes, dtype = llama_shapes(facts), config.model.dtype
        self._weights = Weights.first(shapes, DTYPES[dtype], config.run.seed)
        specs = [(name, DTYPE_NAMES[dtype], shape) for name, shape in shapes.items()]
        self._infos: tuple[TensorInfo, ...] = cut_tensors(specs, facts)

    def root(self) -> str:
        parts = [
            TensorPart(info.name, 0, info.shape[info.axis], self._weights.tensors[info.name])
            for info in self._infos
        ]
        blocks = ((0, sum(info.num_blocks for info in self._infos)),)
        return take_snapshot(self._infos, parts, blocks).manifest.root

    def checksum(self) -> int:
        return self._weights.checksum()

    def train(self, batch: tuple[ScoredGroup, ...]) -> None:
        move(self._weights.tensors, batch)


def replay(config: RunConfig, audit: Audit) -> Iterator[str]:
    """What differs: a root that the run recorded, or a token that other weights made than it says."""
    alone = Alone(config)
    tokens = {VersionId(0, 0): alone.checksum()}
    if alone.root() != audit.first_root:
        yield f"replay: the run began with {audit.first_root}, the replay with {alone.root()}"
    for step in audit.steps:
        for scored in step.batch:
            yield from _check_tokens(scored, tokens)
        alone.train(step.batch)
        tokens[VersionId(0, step.number)] = alone.checksum()
        if (root := alone.root()) != step.root:
            yield f"replay: step {step.number} ends at {root}, the run recorded {step.root}"


def _check_tokens(scored: ScoredGroup, tokens: dict[VersionId, int]) -> Iterator[str]:
    group = scored.group
    for completion in group.completions_G:
        for segment in completion.segments:
            made = set(map(int, completion.token_ids_T[segment.start : segment.end]))
            if made != {tokens.get(segment.version)}:
                yield (
                    f"group {group.number}, attempt {group.attempt}: tokens that {segment.replica}"
                    f" made with {segment.version} are of other weights"
                )
