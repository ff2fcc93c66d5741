#!/bin/sh
# Expected: get_json_schema takes docstrings in Google's form, as its documentation says, with types in brackets too,
#   which is how transformers writes its own; and arguments that are the function's own defaults fit the schema.
# What happens: `text (str): what to find` raises that the docstring has no description for the argument 'text'; the
#   same line without `(str)` is read. `limit: int | None = None` becomes {"type": "integer", "nullable": true}, a
#   word of OpenAPI 3.0 that JSON Schema does not know: a validator refuses null, which the function takes.
#   No default is in the schema.
# Package: transformers 5.23.0, with jsonschema 4.26.0. Documentation: the docstring of
#   transformers.utils.get_json_schema.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet transformers==5.23.0 jsonschema==4.26.0
HF_HOME="$dir" "$dir/venv/bin/python" - <<'END'
from importlib.metadata import version

from jsonschema import ValidationError, validate
from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException


def find(text: str, limit: int | None = None) -> str:
    """Find a text.

    Args:
        text: what to find
        limit: how many at most
    """
    return f"{text} {limit}"


def find_typed(text: str, limit: int | None = None) -> str:
    """Find a text.

    Args:
        text (str): what to find
        limit (int, optional): how many at most
    """
    return find(text, limit)


print("transformers", version("transformers"), "jsonschema", version("jsonschema"))
schema = get_json_schema(find)["function"]["parameters"]
print(schema)
assert schema["properties"]["limit"] == {"type": "integer", "nullable": True, "description": "how many at most"}
try:
    validate({"text": "cat", "limit": None}, schema)
except ValidationError as error:
    print("limit=None:", error.message)
else:
    raise AssertionError("null fits")

try:
    get_json_schema(find_typed)
except DocstringParsingException as error:
    print("types in brackets:", error)
else:
    raise AssertionError("types in brackets are read")
END
