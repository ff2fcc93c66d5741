#!/bin/sh
# Expected: an agent reports a call whose arguments are no JSON to the model, as any other call that fails, and asks again;
#   or it raises an error.
# What happens: where no other call stands beside it, the agent is done. Nothing is reported, no error is raised, and the
#   last message is empty. With a call beside it that can be read, both are reported and the model is asked again. An
#   episode of a small model ends in silence by a missing brace, in training as in an evaluation.
# Package: langchain 1.5.2 (create_agent) with langchain-openai 1.7.4, answers that are not streamed. Documentation: the
#   docstring of create_agent: the loop ends once an answer has no `tool_calls`. It does not say that a broken call is
#   none of them.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet langchain==1.5.2 langchain-core==1.8.3 langchain-openai==1.7.4 langgraph==1.2.24
LANGSMITH_TRACING=false "$dir/venv/bin/python" - <<'END'
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from threading import Thread

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

ANSWERS, REQUESTS = [], []


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        REQUESTS.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        message = ANSWERS.pop(0)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


def calls(*arguments):
    made = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "weather", "arguments": text}}
        for number, text in enumerate(arguments)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def weather(city: str) -> str:
    """The weather in a city."""
    return "rain"


def run(first):
    ANSWERS[:], REQUESTS[:] = [first, {"role": "assistant", "content": "It rains."}], []
    question = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}]}
    last = agent.invoke(question)["messages"][-1]
    reported = [one["content"] for one in REQUESTS[-1]["messages"] if one["role"] == "tool"]
    print("   requests:", len(REQUESTS), " reported to the model:", reported, " the last message:", repr(last.content))
    return len(REQUESTS), len(reported), last.content


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}/v1"
agent = create_agent(ChatOpenAI(model="m", base_url=url, api_key="x"), [weather])

print("langchain", version("langchain"), "langchain-openai", version("langchain-openai"))
good, other, broken = '{"city": "Paris"}', '{"town": "Paris"}', '{"city": "Paris"'
print("a call", good)
assert run(calls(good)) == (2, 1, "It rains.")
print("a call with an argument that the tool does not have,", other)
assert run(calls(other)) == (2, 1, "It rains.")
print("a call that is no JSON,", broken)
assert run(calls(broken)) == (1, 0, "")
print("both", good, "and", broken)
assert run(calls(good, broken)) == (2, 2, "It rains.")
END
