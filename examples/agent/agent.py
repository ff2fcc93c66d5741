"""An agent of the `openai` package: the policy may calculate by CALC, as often as it likes in three turns.

It is an ordinary program: with OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL of another endpoint it runs there,
too. TRIMARAN_ROW is the file that has the dataset's row.
"""

import json
import os
import re

from openai import OpenAI

EXAMPLE = [
    {"role": "system", "content": "Calculate by CALC, then say the result."},
    {"role": "user", "content": "What is 12 + 7?"},
    {"role": "assistant", "content": "CALC 12 + 7"},
    {"role": "user", "content": "19"},
    {"role": "assistant", "content": "12 + 7 is 19."},
]
CALL = re.compile(r"CALC (\d+) ?\+ ?(\d+)")
MOST_TURNS = 3


def main() -> None:
    client, model = OpenAI(), os.environ["OPENAI_MODEL"]
    with open(os.environ["TRIMARAN_ROW"]) as file:
        row = json.load(file)
    messages = EXAMPLE + row["messages"]
    num_calls = 0
    for _ in range(MOST_TURNS):
        answer = client.chat.completions.create(model=model, messages=messages)
        text = answer.choices[0].message.content or ""
        call = CALL.search(text)
        if call is None:
            break
        num_calls += 1
        result = int(call[1]) + int(call[2])
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": str(result)})
    # Whether the answer is right, the run's rules say. This is the program's own part of the reward.
    client.post("/reward", body={"reward": float(num_calls == 1)}, cast_to=object)


if __name__ == "__main__":
    main()
