"""What a section of the configuration is, and one whose keys depend on its `type`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from trimaran.config.faults import describe_faults
from trimaran.errors import InputError

if TYPE_CHECKING:
    from trimaran.choices import Choices


class Section(BaseModel):
    """Keys that are not declared are errors, and nothing changes once it is read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


class Options(Section):
    """One of several ways to do a thing: a function, whose options are its fields.

    A subclass declares its fields and `__call__`. The configuration names it by `type`, and knows
    the keys of that type only.
    """

    type: str = ""
    """Its name in the table of such functions."""


def one_of(choices: Choices, default: str) -> Callable[[Any], Any]:
    """The validator of a key that holds a function of `choices` with its options.

    `name` alone is `{type: name}`; a section without `type` has the options of `default`.
    Raises InputError for an unknown name, a package that cannot be loaded or whose class does not derive
    from the choices' `base`, or a wrong option.
    Example: Annotated[SerializeAsAny[Options], BeforeValidator(one_of(LOSSES, "ppo_clip"))]
    """

    def read(value: Any) -> Any:
        if isinstance(value, Options):
            _check_base(type(value), value.type, choices)
            return value
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, dict):
            raise InputError(f"must be a name, or a section with type: name (given: {value!r})")
        tree = {"type": default, **cast(dict[str, Any], value)}
        kind = choices.load(str(tree["type"]))
        _check_base(kind, str(tree["type"]), choices)
        try:
            return kind.model_validate(tree)
        except ValidationError as error:
            faults = "; ".join(describe_faults(kind, error))
            raise InputError(f"{tree['type']}: {faults}") from None
        except Exception as error:  # a package's own validator
            raise InputError(
                f"{tree['type']}: {kind.__name__} does not take these options"
                f" ({type(error).__name__}: {error})"
            ) from error

    return read


def _check_base(kind: Any, name: str, choices: Choices) -> None:
    if not (isinstance(kind, type) and issubclass(kind, choices.load_base())):
        raise InputError(
            f"{name}: {kind!r} does not derive from {choices.base.replace(':', '.')};"
            " docs/extending.md has the recipe"
        )
