"""A world of fake replicas and trainer ranks for each test."""

import pytest

from tests.weight_sync.fakes import World


@pytest.fixture
def world() -> World:
    return World()
