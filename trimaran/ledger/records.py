"""What the ledger holds: one type for each kind of record, and how a record is written as JSON.

The kind is the type's name in lower case. `Issued(17, 1, "train.jsonl:3")` is written as
{"kind": "issued", "group": 17, "attempt": 1, "prompt": "train.jsonl:3", "reissue": null}.

Units: `group` is a number in prompt order, from 0 on. `attempt` counts the tries of one group, from
1 on. `step` counts training steps, from 1 on. Digests and roots are hexadecimal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, cast, get_args

from trimaran.errors import TrimaranError
from trimaran.types import Proof, VersionId

Tree = Mapping[str, Any]
"""A record as it stands in the store."""
Terms = tuple[tuple[str, tuple[float | None, ...]], ...]
"""A group's terms: each rule's name with its value for each completion; None where it has none."""


class LedgerError(TrimaranError):
    """The ledger is damaged, or a record does not fit the life of its group."""

    remedy = "Bring back a copy of the run's store and payloads that is whole, or start a new run."


@dataclass(frozen=True, slots=True)
class Opened:
    """A controller has taken over the run. One with an older epoch can write no more.

    Example: Opened(epoch=2)
    """

    epoch: int
    """Fencing epoch, drawn from the run's store."""


@dataclass(frozen=True, slots=True)
class Began:
    """The weights before the first step.

    Example: Began(VersionId(0, 0), root="5f0c…")
    """

    version: VersionId
    root: str


@dataclass(frozen=True, slots=True)
class Planned:
    """What a resume may change, as it is for the steps from `step` on: all of it in a run's first record, then
    what is no longer as it was.

    Example: Planned(21, {"run.steps": 60, "validation.every": 10})
    """

    step: int
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reissue:
    """Why a group is reissued: issued once more, as its next attempt. Stands in that `Issued` record.

    Example: Issued(17, 2, "train.jsonl:3", Reissue("rollout-1: connection refused", "rollout-1"))
    """

    cause: str
    replica: str = ""
    """Whose attempt failed; empty after a resume, when no replica is to blame."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A replica has been asked to generate the group.

    Example: Issued(17, 1, "train.jsonl:3")
    """

    group: int
    attempt: int
    prompt: str
    """`Prompt.prompt_id`."""
    reissue: Reissue | None = None
    """None for the first attempt."""


@dataclass(frozen=True, slots=True)
class Retried:
    """A turn of one of the group's episodes was asked of another replica, or its environment failed and the
    episode was begun again.

    Example: Retried(17, 1, episode=3, cause="environment-0: turn 2: the environment died (SIGKILL)")
    """

    group: int
    attempt: int
    episode: int
    """Its place in the group."""
    cause: str
    replica: str = ""
    """Whose turn failed; empty where the environment did."""


@dataclass(frozen=True, slots=True)
class Generated:
    """All completions of the group have arrived, from proven weights.

    Example: Generated(17, 1, digest="9c41…")
    """

    group: int
    attempt: int
    digest: str
    """sha256 of the serialized group, with which its payload begins."""
    makers: tuple[tuple[str, str], ...] = ()
    """(replica, version) of everyone that made tokens of it, such as ("rollout-1", "0.12")."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The group has its rewards and waits to be trained on.

    Example: Scored(17, 1, "77ab…", (1.5, None), (("exact", (1.0, None)),))
    """

    group: int
    attempt: int
    payload: str
    """Name of the payload with the serialized scored group: its sha256."""
    rewards: tuple[float | None, ...] = ()
    """One a completion; None where it could not be scored."""
    terms: Terms = ()
    """Why the rewards are what they are."""
    makers: tuple[tuple[str, str], ...] = ()
    """(replica, version) of everyone that made its greedy answer, where it has one."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """The end of a group that was generated and does not train: less than half of it could be scored,
    or all its rewards are equal, so that dynamic sampling has replaced it.

    Example: Filtered(17, 3, "style: connection refused (5 of 8 completions)")
    """

    group: int
    attempt: int
    reason: str
    rewards: tuple[float | None, ...] = ()
    """As in `Scored`, where it was replaced; no payload of it is kept."""
    terms: Terms = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """The end of a group that could not be generated.

    Example: Skipped(17, 3, "the prompt has 80 tokens; rollout.max_prompt_tokens is 72")
    """

    group: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Consumed:
    """A batch was chosen. From here on it trains, also when the step is replayed.

    Example: Consumed(8, ((16, 1), (17, 2)), proofs)
    """

    step: int
    groups: tuple[tuple[int, int], ...]
    """(group, attempt), in prompt order."""
    proofs: tuple[Proof, ...] = ()
    """Proofs of every version and replica that made the batch's tokens, as they stood then."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The batch was trained. Its step is `version.step`.

    Example: Committed(VersionId(0, 8), root="02d7…")
    """

    version: VersionId
    """After the step."""
    root: str
    nonfinite: str = ""
    """Why optimizer updates of the step were left out; empty where all were made."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The new weights are live and the step's row is written.

    Example: Timed(8, seconds=5.2)
    """

    step: int
    seconds: float
    """Since the weights of the step before were live, without validations."""


@dataclass(frozen=True, slots=True)
class Branched:
    """A replay did not reach the recorded root: the weights of this and later steps are others.

    Example: Branched(step=6, lineage=1)
    """

    step: int
    lineage: int
    """The new one, which holds them."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a step of a replay that branched has reached; takes the place of its `Committed`.

    Example: Replayed(VersionId(1, 6), root="e90a…")
    """

    version: VersionId
    root: str
    nonfinite: str = ""


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The trainer's state after `step` is on the disk.

    Example: Checkpointed(10, "checkpoints/step-00010", oldest=10)
    """

    step: int
    path: str
    oldest: int = 0
    """Step of the oldest checkpoint that is still kept: no resume begins before it."""


@dataclass(frozen=True, slots=True)
class Tainted:
    """Groups that had trained when a wrong block was found in the engine that made their tokens.

    Example: Tainted("rollout-1", ("0.2", "0.3"), "w block 2 …", (3, 4), ((17, 1), (25, 1)), num_faults=2)
    """

    replica: str
    """As in the segments."""
    versions: tuple[str, ...]
    """Which it may have served with that block: since this was last read back and right."""
    fault: str
    steps: tuple[int, ...]
    """In which the groups have trained."""
    groups: tuple[tuple[int, int], ...]
    """(group, attempt) of those with tokens of these versions."""
    num_faults: int
    """How many of weight sync's faults are dealt with."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What all records before this one add up to, so that a reader can begin here.

    They are archived as a payload; `trimaran/ledger/payloads/archive.py` says how.

    Example: Compacted(before="9c41…", archive="77ab…", first=1, state=encode_state(state))
    """

    before: str
    """Hash of the record before."""
    archive: str
    """Digest of the payload with the records from `first` up to here."""
    first: int
    state: Mapping[str, Any]
    """A `LedgerState`, as `encode_state` writes it."""


GroupRecord = Issued | Retried | Generated | Scored | Filtered | Skipped
"""Records of one group alone."""
Record = (
    GroupRecord
    | Opened
    | Began
    | Planned
    | Consumed
    | Committed
    | Timed
    | Branched
    | Replayed
    | Checkpointed
    | Tainted
    | Compacted
)
TYPES: Mapping[str, type[Record]] = {kind.__name__.lower(): kind for kind in get_args(Record)}


def encode(record: Record) -> dict[str, Any]:
    """As it stands in the store, but for the hash.

    Example: encode(Opened(3)) == {"kind": "opened", "epoch": 3}
    """
    kind = type(record)
    values = {name: _plain(getattr(record, name)) for name in _names(kind)}
    return {"kind": kind.__name__.lower(), **values}


def canonical(tree: Tree) -> str:
    """The record without its hash, as it is hashed and archived: equal ones are equal texts."""
    content = {key: value for key, value in tree.items() if key != "hash"}
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def chain_hash(before: str, content: str) -> str:
    """The hash of a record behind one with the hash `before`. `content`: as `canonical` gives it."""
    return hashlib.sha256(f"{before}\n{content}".encode()).hexdigest()


def decode(tree: Tree) -> Record:
    """The record that `encode` wrote. Raises LedgerError for anything else."""
    content = {name: value for name, value in tree.items() if name not in ("kind", "hash")}
    kind = TYPES.get(tree.get("kind", ""))
    if kind is None or content.keys() != set(_names(kind)):
        raise LedgerError(
            f"{dict(tree)} is no record of this version of Trimaran; read it with the one that wrote it"
        )
    return kind(**{name: _READ.get(name, _as_it_is)(value) for name, value in content.items()})


@cache
def _names(kind: type[Record]) -> tuple[str, ...]:
    """The fields, in order."""
    return tuple(field.name for field in fields(kind))


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, str | int | float):  # most are, and to ask about a dataclass takes longer
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, tuple):
        return [_plain(part) for part in cast(tuple[Any, ...], value)]
    return value


def decode_proof(tree: Tree) -> Proof:
    """From what `dataclasses.asdict` makes of a proof."""
    fields: dict[str, Any] = {**tree, "version": VersionId(**tree["version"])}
    return Proof(**fields)


def _as_it_is(value: Any) -> Any:
    return value


# By field: one of the same name has the same type in every record.
_READ: dict[str, Callable[[Any], Any]] = {
    "version": lambda tree: VersionId(**tree),
    "reissue": lambda tree: tree and Reissue(**tree),
    "makers": lambda rows: tuple((replica, version) for replica, version in rows),
    "rewards": tuple,
    "terms": lambda rows: tuple((name, tuple(values)) for name, values in rows),
    "versions": tuple,
    "steps": tuple,
    "groups": lambda rows: tuple((group, attempt) for group, attempt in rows),
    "proofs": lambda trees: tuple(map(decode_proof, trees)),
}
