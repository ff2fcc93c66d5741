"""Small tokenizers whose chat templates are of the styles that are met."""

from __future__ import annotations

from pathlib import Path

from services.rollout.chat import ChatTokenizer
from tests.tiny_model import tiny_tokenizer

TURN = "<|turn|>"
CHATML = """\
{%- if tools -%}
<|turn|>system
Call as <tool_call>{{ {"name": "NAME", "arguments": {}} | tojson }}</tool_call>: {{ tools | tojson }}<end>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == "tool" -%}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" -%}<|turn|>user{%- endif -%}
{{ "\\n<tool_response>\\n" + message.content + "\\n</tool_response>" }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}<end>
{% endif -%}
{%- else -%}
<|turn|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls -%}
{{ "\\n<tool_call>\\n" }}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<end>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|turn|>assistant
{% endif -%}"""
"""As of Qwen2.5: a new line behind the end of a turn, and results in a turn of the user."""
LLAMA = """\
{%- for message in messages -%}
<|turn|>{{ message.role }}

{% if message.tool_calls -%}
{%- if message.tool_calls | length > 1 -%}{{ raise_exception("one call alone") }}{%- endif -%}
{"name": "{{ message.tool_calls[0].function.name }}", "parameters": {{ message.tool_calls[0].function.arguments | tojson }}}
{%- else -%}
{{ message.content | trim }}
{%- endif -%}
<end>
{%- endfor -%}
{%- if add_generation_prompt -%}<|turn|>assistant

{% endif -%}"""
"""As of Llama 3: nothing behind the end of a turn, white space is stripped."""
FORGETFUL = """\
{%- set last = namespace(user=-1) -%}
{%- for message in messages -%}{%- if message.role == "user" -%}{%- set last.user = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for message in messages -%}
<|turn|>{{ message.role }}
{% if message.role == "assistant" and loop.index0 > last.user -%}
<think>
{{ message.reasoning_content or "" }}
</think>
{% endif -%}
{{ message.content.split("</think>")[-1] }}<end>
{% endfor -%}
{%- if add_generation_prompt -%}<|turn|>assistant
<think>
{% endif -%}"""
"""As of Qwen3.5: what was thought before the last message of the user is shown no more."""
PLAIN = """\
{%- for message in messages -%}
{{ message.role }}: {{ message.content }}
{% endfor -%}
{%- if add_generation_prompt -%}assistant: {% endif -%}"""
"""No token ends a turn, and tools are not shown."""

TALKATIVE = """\
{%- for message in messages -%}
{%- if message.role != ("user" if loop.index0 is divisibleby 2 else "assistant") -%}
{{ raise_exception("Conversation roles must alternate") }}
{%- endif -%}
<|turn|>{{ message.role }}
{{ message.content }}<end>
{% endfor -%}
{%- if add_generation_prompt -%}<|turn|>assistant
{% endif -%}"""
"""As of Gemma: it takes a user and an assistant, in turn."""


def write_chat(folder: Path, template: str) -> ChatTokenizer:
    """One token a character; <end> ends a turn. It has no token for `~`."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [TURN]})
    tokenizer.add_tokens([*"<>/{}|_\"'[]()*"])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return ChatTokenizer(folder)
