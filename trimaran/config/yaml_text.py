"""YAML that a person wrote, read so that whatever is wrong with it is one kind of error."""

from __future__ import annotations

from typing import Any

import yaml


def parse_yaml(text: str, loader: Any = yaml.SafeLoader) -> Any:
    """Raises yaml.YAMLError, also for what PyYAML's own parts choke on.

    Example: parse_yaml("steps: 20") == {"steps": 20}
    """
    try:
        return yaml.load(text, loader)
    except RecursionError:
        raise yaml.YAMLError("too many levels within each other") from None
    except (ValueError, OverflowError) as error:  # a date or a number that is none
        raise yaml.YAMLError(str(error)) from None
