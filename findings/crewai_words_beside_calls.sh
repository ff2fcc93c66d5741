#!/bin/sh
# Expected: an agent sends back what the model said, as it said it: the text and the calls of an answer.
# What happens: where an answer has calls, its text is dropped. The model gets its calls and their results, and never
#   what it had planned or concluded beside them; the output's messages lack the words, too. A model that is trained so
#   sees another conversation than it had, and the tokens of a turn do not extend those of the one before.
# Package: crewai 1.15.30 (a crew, and Agent.kickoff), which makes the message of its calls with no content.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet crewai==1.15.30
cd "$dir"
HOME="$dir" CREWAI_DISABLE_TELEMETRY=true CREWAI_TRACING_ENABLED=false venv/bin/python - <<'END'
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from threading import Thread

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

WORDS = ("It may rain in Paris, so I look there first.", "Paris is wet. Rome is next.")
CITIES = ("Paris", "Rome")
REQUESTS = []


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        REQUESTS.append(request)
        number = sum(one["role"] == "assistant" for one in request["messages"])
        message = {"role": "assistant", "content": "Rome."}
        if number < len(WORDS):
            call = {"name": "weather", "arguments": json.dumps({"city": CITIES[number]})}
            calls = [{"id": f"call_{number}", "type": "function", "function": call}]
            message = {"role": "assistant", "content": WORDS[number], "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


@tool("weather")
def weather(city: str) -> str:
    """The weather in a city."""
    return "sun" if city == "Rome" else "rain"


def of_crew(agent):
    task = Task(description="Where is it dry?", expected_output="a city", agent=agent)
    return Crew(agents=[agent], tasks=[task]).kickoff().tasks_output[0]


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}/v1"
lines = ["crewai " + version("crewai")]
for name, run in (("crew", of_crew), ("agent", lambda agent: agent.kickoff("Where is it dry?"))):
    REQUESTS.clear()
    llm = LLM(model="openai/m", base_url=url, api_key="x")
    output = run(Agent(role="Forecaster", goal="Find a dry city.", backstory="You look.", tools=[weather], llm=llm))
    said = [one for one in REQUESTS[-1]["messages"] if one["role"] == "assistant"]
    results = [one["content"] for one in REQUESTS[-1]["messages"] if one["role"] == "tool"]
    lines.append(f"{name}: the model said {WORDS}")
    lines.append(f"   it was sent back {[one['content'] for one in said]} with {len(said)} calls, results {results}")
    lines.append(f"   the output: {output.raw!r}; its messages: {[one['role'] for one in output.messages]}")
    assert output.raw == "Rome." and results == ["rain", "sun"], (output.raw, results)
    assert [one["content"] for one in said] == [None, None] and all(one["tool_calls"] for one in said)
    everything = json.dumps([REQUESTS, output.messages], default=str)
    assert not any(words in everything for words in WORDS)
print("\n".join(lines))
END
