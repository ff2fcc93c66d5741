"""What vLLM's ranks share under names in /dev/shm, and the sockets at which they meet, are gone after a kill
of all that belongs to a replica."""

from __future__ import annotations

import psutil
import pytest

from tests.rollout import replicas
from tests.rollout.test_vllm_pulse import SERVE, SHARED
from trimaran.host.shared_memory import FOLDER, remove_left, semaphore_prefix

pytestmark = pytest.mark.e2e


def test_a_killed_replica_of_two_ranks_leaves_names_that_its_note_lists(model, tmp_path):
    replica = replicas.start_replica("vllm", model, tmp_path, SERVE, tensor_parallel=2)
    note = replica.note
    noted = {path.name for path in FOLDER.iterdir() if path.name in unescaped(note)}
    assert all(any(kind in name for name in noted) for kind in SHARED), noted
    [sockets] = FOLDER.glob(f"{semaphore_prefix(note.parent.parent)}-*")
    assert any(path.is_socket() for path in sockets.iterdir())
    try:
        assert remove_left(note, 0.0) == []
        tree = [psutil.Process(replica.process.pid)]
        tree += tree[0].children(recursive=True)
        for process in tree:  # none of them sees the end of another
            process.suspend()
        for process in tree:
            process.kill()
        replica.process.wait(replicas.TIMEOUT)
        left = {name for name in noted if (FOLDER / name).exists()}
        assert any("psm_" in name for name in left), "vLLM removes them by itself"
        assert any(sockets.iterdir())
        assert set(remove_left(note)) == {*left, sockets.name}
        assert not sockets.exists()
        assert not any((FOLDER / name).exists() for name in noted)
    finally:
        replicas.stop(replica)


def unescaped(note) -> list[str]:
    return note.read_text().replace("[[]", "[").splitlines()
