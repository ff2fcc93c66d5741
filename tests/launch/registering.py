"""A service that registers and does as it is asked: `registering.py STORE_URL RUN NAME WHAT MARK`.

run: until it is asked to end; finishN: until MARK-may-finish is there, then exit code N.
"""

import asyncio
import os
import sys
from pathlib import Path

from commands.launch.joining.registration import ServiceRegistration
from trimaran.store import open_store


async def main(url: str, run_id: str, name: str, what: str, mark: Path) -> int:
    store = await open_store(url)
    registration = await ServiceRegistration.claim(store, run_id, [name], 60.0)
    await registration.move("127.0.0.1:1")
    mark.write_text(str(os.getpid()))
    keeping = asyncio.create_task(registration.keep())
    code = int(what.removeprefix("finish") or 0) if what.startswith("finish") else 0
    while what.startswith("finish") and not Path(f"{mark}-may-finish").exists():
        await asyncio.sleep(0.05)
    if not what.startswith("finish"):
        await keeping
    keeping.cancel()
    await registration.end(code, [f"error: ends with {code}"])
    await store.close()
    return code


URL, RUN, NAME, WHAT, MARK = sys.argv[1:]
sys.exit(asyncio.run(main(URL, RUN, NAME, WHAT, Path(MARK))))
