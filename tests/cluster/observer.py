"""What becomes of a run, as a process on one of the hosts sees it: `observer STORE RUN_ID OUTPUT`.

A line of JSON for each look: when, the run's state and step, each service's incarnation, and who of
them answers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from commands.launch.joining.service_records import read_services
from trimaran.errors import UnavailableError
from trimaran.run.runs import events_stream, run_key
from trimaran.store import Store, open_store
from trimaran.trust.access import NO_TRUST
from trimaran.wire import rpc

LOOK_SECONDS = 0.2
ASK_SECONDS = 1.0


async def look(store: Store, run_id: str, after: int) -> dict[str, Any]:
    """`after`: the last event that was seen."""
    events = await store.read(events_stream(run_id), after)
    record = await store.get(run_key(run_id))
    services = await read_services(store, run_id)
    here = {name: found for name, (found, _) in services.items() if not found.has_ended}
    answers = await asyncio.gather(
        *(rpc.is_serving(found.address, ASK_SECONDS, NO_TRUST) for found in here.values())
    )
    return {
        "time": time.time(),
        "state": record.value["state"] if record else "",
        "step": record.value["step"] if record else -1,
        "lives": {name: found.incarnation for name, found in here.items()},
        "hosts": {name: found.address.rpartition(":")[0] for name, found in here.items()},
        "notes": [(tree["time"], tree["text"]) for _, tree in events if tree["kind"] == "process"],
        "events": events[-1][0] if events else after,
        "answering": [name for name, answer in zip(here, answers, strict=True) if answer],
    }


async def main(url: str, run_id: str, output: Path) -> None:
    store = await open_store(url)
    after = 0
    with output.open("a") as file:
        while True:
            try:
                seen = await look(store, run_id, after)
                after = seen["events"]
                file.write(json.dumps(seen) + "\n")
                file.flush()
            except UnavailableError as error:
                print(error, flush=True)
            await asyncio.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
