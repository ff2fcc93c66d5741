"""How a replica's events are spread over its responses."""

from services.rollout.engine import Chunk, Ended
from services.rollout.server import _portions
from trimaran.types import VersionId

CHUNK = Chunk(0, 0, VersionId(0, 0), (7,), (-0.1,))


def test_each_completion_whose_experts_are_reported_ends_a_response():
    plain, reported = Ended(0, "stop"), Ended(1, "stop", b"ab", b"cd")
    assert list(_portions([CHUNK, plain, plain, CHUNK])) == [[CHUNK, plain, plain, CHUNK]]
    assert list(_portions([CHUNK, reported, CHUNK, reported, plain])) == [
        [CHUNK, reported],
        [CHUNK, reported],
        [plain],
    ]


def test_a_sign_of_life_stays_one():
    assert list(_portions([])) == [[]]
