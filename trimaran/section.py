"""What a section of the configuration is, and one whose keys depend on its `type`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny, ValidationError

from trimaran.config_faults import describe_faults

if TYPE_CHECKING:
    from trimaran.choices import Choices

Kind = TypeVar("Kind", bound="Options")


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


def one_of(choices: Choices, default: str) -> Any:
    """The annotation of a key that holds a function of `choices` with its options.

    `name` alone is `{type: name}`; a section without `type` has the options of `default`.
    Example: loss: one_of(LOSSES, "ppo_clip") = "ppo_clip"   # loss: {type: gspo, clip_low: 3.0e-4}
    """

    def read(value: Any) -> Any:
        if isinstance(value, Options):
            return value
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, dict):
            raise ValueError(f"must be a name, or a section with type: name (given: {value!r})")
        tree = {"type": default, **cast(dict[str, Any], value)}
        kind: type[Options] = choices.load(choices.check(tree["type"]))
        try:
            return kind.model_validate(tree)
        except ValidationError as error:
            faults = describe_faults(kind, error)
            raise ValueError(f"{tree['type']}: {'; '.join(faults)}") from None

    return Annotated[SerializeAsAny[Options], BeforeValidator(read)]
