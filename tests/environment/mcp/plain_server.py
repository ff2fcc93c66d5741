"""An MCP server of the standard library alone, with tools that fail in every way.

python plain_server.py [FILE]: writes its process id, and that of a child that stays, to FILE.
"""

import json
import os
import subprocess
import sys
import time

TOOLS = ["add", "fail", "die", "hang", "garbage", "protocol", "parts"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def say(content: object) -> None:
    print(json.dumps(content), flush=True)


def text(words: str, **more: object) -> dict[str, object]:
    return {"content": [{"type": "text", "text": words}], **more}


def call(name: str, arguments: dict[str, int]) -> dict[str, object]:
    match name:
        case "add":
            return text(str(arguments["a"] + arguments["b"]))
        case "fail":
            return text("no luck", isError=True)
        case "parts":
            image = {"type": "image", "data": "", "mimeType": "image/png"}
            return {"content": [*text("one")["content"], image, *text("two")["content"]]}  # type: ignore
        case "die":
            print("the disk is full", file=sys.stderr, flush=True)
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "garbage":
            print("certainly", flush=True)
            time.sleep(600)
    raise ValueError(name)


def main() -> None:
    if len(sys.argv) > 1:
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        with open(sys.argv[1], "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        answer = {"jsonrpc": "2.0", "id": request["id"]}
        params = request.get("params", {})
        match request["method"]:
            case "initialize":
                version = params["protocolVersion"]
                about = {"name": "plain", "version": "1"}
                result = {"protocolVersion": version, "capabilities": {"tools": {}}}
                say({**answer, "result": {**result, "serverInfo": about}})
            case "tools/list":  # two pages
                first = "cursor" not in params
                names = TOOLS[:3] if first else TOOLS[3:]
                tools = [{"name": name, "inputSchema": SCHEMA} for name in names]
                tools[0]["description"] = "The first."
                say({**answer, "result": {"tools": tools} | ({"nextCursor": "2"} if first else {})})
            case "tools/call" if params["name"] == "protocol":
                say({**answer, "error": {"code": -32602, "message": "arguments do not fit"}})
            case "tools/call":
                say({**answer, "result": call(params["name"], params["arguments"])})


if __name__ == "__main__":
    main()
