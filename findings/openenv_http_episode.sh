#!/bin/sh
# Expected: POST /reset begins an episode and POST /step goes on with it; GET /state tells where it is.
# What happens: each request makes an environment of its own and closes it after the answer. A step follows no reset,
#   and the state is always that of a new one; every answer has status 200. Episodes exist only over /ws.
#   There, too, a step needs no reset, and a step behind `done` is played on.
# Package: openenv 0.10.0. Documentation: the descriptions of these three paths in the server's own /openapi.json,
#   which speak of one environment and do not say this.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet openenv==0.10.0
cd "$dir"
venv/bin/python - <<'END'
import json
from importlib.metadata import version

from fastapi.testclient import TestClient
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Add(Action):
    number: int


class Sum(Observation):
    total: int


class Adder(Environment):
    """It is over at 10."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.total, self.steps = 0, 0

    def reset(self, seed=None, episode_id=None, start: int = 0, **_) -> Sum:
        self.total, self.steps = start, 0
        return Sum(total=start)

    def step(self, action: Add, **_) -> Sum:
        self.total, self.steps = self.total + action.number, self.steps + 1
        return Sum(total=self.total, done=self.total >= 10)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


client = TestClient(create_fastapi_app(Adder, Add, Sum))
print("openenv", version("openenv"))
answers = [
    client.post("/reset", json={"start": 5}),
    client.post("/step", json={"action": {"number": 1}}),
    client.post("/step", json={"action": {"number": 1}}),
    client.get("/state"),
]
for answer in answers:
    print(answer.request.method, answer.request.url.path, answer.status_code, answer.json())
print("environments made:", Adder.made)
assert [answer.json()["observation"]["total"] for answer in answers[:3]] == [5, 1, 1]
assert answers[3].json()["step_count"] == 0
assert all(answer.status_code == 200 for answer in answers)
assert Adder.made == 4, Adder.made

with client.websocket_connect("/ws") as socket:

    def ask(kind: str, **data) -> dict:
        socket.send_text(json.dumps({"type": kind, "data": data}))
        answer = socket.receive_json()["data"]
        print("/ws", kind, data, answer)
        return answer

    assert ask("step", number=1)["observation"]["total"] == 1
    assert ask("reset", start=5)["observation"]["total"] == 5
    assert ask("step", number=6)["done"]
    assert ask("step", number=-4) == {"observation": {"metadata": {}, "total": 7}, "reward": None, "done": False}
END
