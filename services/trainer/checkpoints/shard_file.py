"""One shard of a checkpoint: a safetensors file that knows the digest of each of its tensors.

    __metadata__ of the header    tensor's name -> xxh3-128 of its bytes
    digest of the shard           xxh3-128 of the header: names, dtypes, shapes, places and those digests

So a rank that needs a few tensors of a shard reads and checks these alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from xxhash import xxh3_128_hexdigest

from services.trainer.checkpoints.saved import SavedTensors, specs_of
from services.trainer.checkpoints.tensor_file import Spec, TensorFile, raw, read_header
from services.trainer.step.finite import is_finite
from trimaran.errors import InputError, InternalError
from trimaran.host.system_errors import refused

UNKNOWN = "0" * 32
"""Takes a digest's place in the header until the tensor is written."""


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """A shard's file and its digest. Tensors come to the host one by one.

    Raises InternalError for a number that is not finite; the file is removed then.
    """
    specs = specs_of(tensors)
    names = sorted(specs)
    digests = dict.fromkeys(names, UNKNOWN)
    try:
        with TensorFile(path, [specs[name] for name in names], digests) as file:
            for name in names:
                host = file.write(name, tensors[name])
                if not is_finite(host):
                    raise InternalError(
                        f"{name} holds numbers that are not finite; nothing is saved"
                    )
                digests[name] = xxh3_128_hexdigest(raw(host))
            header = file.replace_metadata(digests)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return xxh3_128_hexdigest(header)


class ShardFile(SavedTensors):
    """What `write_tensors` wrote, mapped into memory; a tensor's bytes are checked when it is first read.

    Example: ShardFile(path, digest, f"{path}", "remove step-00010")["main.output_layer.weight"]
    """

    def __init__(self, path: Path, digest: str, where: str, remedy: str) -> None:
        """`digest`: of the shard. `where` it was saved, and a `remedy`: for errors.

        Raises InputError when the file cannot be read or its header is not what was written.
        """
        self._where, self._remedy = where, remedy
        self._checked: set[str] = set()
        try:
            header = read_header(path)
            if xxh3_128_hexdigest(header) != digest:
                raise self._damaged("its header")
            tree: dict[str, Any] = json.loads(header)
            self._file: Any = safe_open(path, framework="pt")
        except (OSError, ValueError, SafetensorError) as error:
            raise refused(f"{where}: cannot be read", error, remedy) from None
        self._digests: dict[str, str] = tree.pop("__metadata__", {})
        self._specs = {
            name: Spec(name, entry["dtype"], tuple(entry["shape"])) for name, entry in tree.items()
        }

    @property
    def specs(self) -> Mapping[str, Spec]:
        return self._specs

    def __getitem__(self, name: str) -> torch.Tensor:
        """Read-only. Raises InputError when its bytes are not what was written."""
        if name not in self._specs:
            raise KeyError(name)
        tensor: torch.Tensor = self._file.get_tensor(name)
        if name not in self._checked:
            if xxh3_128_hexdigest(raw(tensor)) != self._digests[name]:
                raise self._damaged(name)
            self._checked.add(name)
        return tensor

    def check(self) -> None:
        """Checks all tensors. Raises InputError."""
        for name in self._specs:
            self[name]

    def _damaged(self, what: str) -> InputError:
        return InputError(
            f"{self._where}: is damaged, the digest of {what} is not that of the save; {self._remedy}"
        )
