"""The sections `model` and `data`: what is trained, and on which rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field, field_serializer, model_validator

from trimaran.config.section import Section
from trimaran.config.values import MAX_DATASETS, MAX_SHARE, PlaceUrl, TemplateKwargs, as_branch
from trimaran.types import MAX_PIXELS


class ModelSection(Section):
    """What is trained. `model: {path: models/SmolLM2-135M-Instruct}`"""

    path: Path
    """A Hugging Face folder: config.json, tokenizer and safetensors. Each host of the run that needs
    it has it there, or fetches it from `source`."""
    source: PlaceUrl | None = None
    """Where a host that lacks `path` fetches it from, once: a folder or a bucket to which
    `trimaran model push` has brought it."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Which model is meant, as `trimaran model push` prints it: another one is refused."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """As torch calls it. What computes and what travels; main weights are always fp32."""


class RowSection(Section):
    """What the columns of a dataset's rows are, and what their prompts are taken for."""

    prompt_key: str = "prompt"
    """Holds a text, or a list of {"role", "content"} messages. As the other keys, a column or a place inside of one,
    as `extra_info.question`."""
    answer_key: str = "answer"
    """In rows as verl writes them, without a column `answer`, it is `reward_model.ground_truth`."""
    image_key: str | None = None
    """Holds the prompt's images, one or a list: bytes, {"bytes", "path"} as the datasets library writes
    them, or the path of a file, from the dataset's folder on. Without it the rows have no images."""
    task: Annotated[str, Field(min_length=1)] = "default"
    """Reward rules may be for some tasks only."""
    task_key: str | None = None
    """Holds each row's task, in the place of `task`. verl's files have it in `data_source`."""
    system: str | None = None
    """A system message before every prompt that has none of its own."""


class DatasetSection(RowSection):
    """One of several datasets. Keys that it leaves out are as in `data`."""

    path: Path


class SharedDatasetSection(DatasetSection):
    """One of several that a run is trained on. `{path: gsm8k.parquet, weight: 3, task: gsm8k}`"""

    weight: Annotated[int, Field(ge=1, le=MAX_SHARE)] = 1
    """Its part of the prompts: with weights 3 and 1, three of each four are of the first dataset."""


class DataSection(RowSection):
    """Prompts with their reference answers. `data: {train: train.jsonl, answer_key: solution}`"""

    train: Annotated[tuple[SharedDatasetSection, ...], Field(min_length=1, max_length=MAX_DATASETS)]
    """A path, or a list of such files that are mixed, each with its weight, task and keys; docs/data.md.
    JSONL or Parquet, one prompt a row; or the format of an installed package, by the file's suffix."""
    validation: Annotated[tuple[DatasetSection, ...], Field(max_length=MAX_DATASETS)] = ()
    """The same, of prompts that are not trained on."""
    shuffle: bool = True
    """false: each dataset's rows come in the order of its file."""
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)
    """What the model's chat template is given besides the messages, such as `{enable_thinking: false}` of Qwen3.
    A key that the template does not know is refused; docs/data.md says what becomes of enable_thinking."""
    min_pixels: Annotated[int, Field(ge=1, le=MAX_PIXELS)] = 262144
    """A smaller image is enlarged, as its sides allow."""
    max_pixels: Annotated[int, Field(ge=1, le=MAX_PIXELS)] = 4194304
    """A larger image is reduced. Divided by 784 (Qwen2.5-VL) or 1024 (Qwen3-VL): its tokens."""

    @model_validator(mode="before")
    @classmethod
    def _pass_on(cls, tree: Any) -> Any:
        """A path alone is a list of one, and each dataset has the keys of `data` that it leaves out."""
        if not isinstance(tree, dict):
            return tree
        branch = dict(cast(dict[str, Any], tree))
        given_here = {key: branch.get(key) for key in RowSection.model_fields}
        own = {key: value for key, value in given_here.items() if isinstance(value, str)}
        for name in branch.keys() & {"train", "validation"}:
            value = () if branch[name] is None and name == "validation" else branch[name]
            items = cast(list[Any], value) if isinstance(value, list | tuple) else [value]
            branch[name] = [
                item if (given := as_dataset(item)) is None else {**own, **given} for item in items
            ]
        return branch

    @model_validator(mode="after")
    def _pixels_in_order(self) -> DataSection:
        if self.min_pixels > self.max_pixels:
            raise ValueError(
                f"min_pixels ({self.min_pixels}) must not be more than max_pixels ({self.max_pixels})"
            )
        return self

    @field_serializer("train", "validation")
    def _as_short_as_given(self, sections: tuple[DatasetSection, ...]) -> Any:
        """Without what `data` says for all, so that an override of a resolved file's `data` holds."""
        own = {key: getattr(self, key) for key in RowSection.model_fields}
        items = [
            {key: value for key, value in tree.items() if key not in own or value != own[key]}
            for tree in (section.model_dump(mode="json") for section in sections)
        ]
        if len(items) == 1 and items[0].keys() <= {"path", "weight"}:
            return items[0]["path"]
        return items or None

    @property
    def has_images(self) -> bool:
        return any(one.image_key is not None for one in (*self.train, *self.validation))

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(one.path for one in (*self.train, *self.validation))


def as_dataset(item: Any) -> dict[str, Any] | None:
    """An item of a list of datasets, which may be a path alone; None for what is neither."""
    if isinstance(item, str | Path):
        return {"path": item}
    if isinstance(item, DatasetSection):
        return dict(item)
    return as_branch(item)
