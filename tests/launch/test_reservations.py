"""Two launchers of a machine never choose one port, even before anything listens there."""

from __future__ import annotations

import subprocess
import sys

from trimaran.run.network import LOOPBACK

CHOOSE = """
import random, sys
random.seed(7)  # the same order in every process
from trimaran.run.network import LOOPBACK
taken = set()
for _ in range(20):
    taken.add(LOOPBACK.free_address(taken))
print(*sorted(taken), flush=True)
sys.stdin.read()
"""


def test_launchers_that_choose_at_the_same_time_choose_different_ports() -> None:
    launchers = [
        subprocess.Popen(
            [sys.executable, "-c", CHOOSE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        chosen = [process.stdout.readline().split() for process in launchers if process.stdout]
        every = [address for addresses in chosen for address in addresses]
        assert len(every) == len(set(every)) == 60
    finally:
        for process in launchers:
            process.kill()
            process.wait()
            assert process.stdin and process.stdout
            process.stdin.close()
            process.stdout.close()


def test_a_port_is_free_again_when_its_launcher_is_gone() -> None:
    code = "from trimaran.run.network import LOOPBACK; print(LOOPBACK.free_address())"
    command = [sys.executable, "-c", f"import random; random.seed(3); {code}"]
    first, second = (subprocess.check_output(command, text=True) for _ in range(2))
    assert first == second
    assert int(LOOPBACK.free_address().rpartition(":")[2]) in LOOPBACK.ports
