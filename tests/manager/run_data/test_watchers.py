"""A slow or greedy watcher slows nobody."""

import pytest

from services.manager.run_data.watchers import Watchers
from trimaran.errors import LimitError


def test_a_client_has_so_many_watchers_at_a_time():
    watchers = Watchers(2)
    with watchers.one_more("anna"), watchers.one_more("anna"):
        third = watchers.one_more("anna")
        with pytest.raises(LimitError, match="watchers of anna: 2 at a time"), third:
            pass
        with watchers.one_more("bob"):
            pass
    with watchers.one_more("anna"):
        pass
