"""How many files a process may open, and how many of them strangers may take."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import resource
from trimaran.host.open_files import most_connections, raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE), most_connections())
"""


def test_the_soft_limit_becomes_the_hard_one_and_half_of_it_stays_free() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert ran.stdout == "(200, 200) 50\n"
