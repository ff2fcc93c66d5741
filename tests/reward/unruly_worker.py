"""A reward worker with rules that misbehave on certain answers, as a stand-in for symbolic checkers."""

import os
import sys
import time

from services.reward import worker
from services.reward.rules import RULES, Rule


def unruly(text, answer, extras):
    print("a rule may print")  # must not disturb the frames
    print(text, os.getpid(), file=open(extras["log"], "a"), flush=True)  # noqa: SIM115
    if text == "hang":
        time.sleep(3600)
    if text == "crash":
        os._exit(9)
    if text == "raise":
        raise RuntimeError("cannot parse")
    if text == "beyond":
        return 7.0
    if text == "crash once" and open(extras["log"]).read().count(text) == 1:  # noqa: SIM115
        os._exit(9)
    if text == "hang once" and open(extras["log"]).read().count(text) == 1:  # noqa: SIM115
        time.sleep(3600)
    return float(text == answer)


RULES["unruly"] = Rule(unruly)  # type: ignore[index]
RULES["penalty"] = Rule(lambda text, answer, extras: 1.0)  # type: ignore[index]

if __name__ == "__main__":
    sys.exit(worker.main())
