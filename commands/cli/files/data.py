"""`trimaran data`: prepare a dataset, show what a model will see of it, check every row."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from services.controller.datasets import HeldOutPrompts, TrainingPrompts
from services.reward.terms import check_row, make_terms
from services.rollout.chat import ChatTokenizer
from services.rollout.images import check_image_tokens
from trimaran.config import RunConfig, load_config, parse_config, resolve_tree
from trimaran.data.images.prepare import image_multiple, num_tokens, open_image
from trimaran.data.images.processor import image_token
from trimaran.data.make_row import CountTokens, PreparePlan
from trimaran.data.prepare import CardTree, held_out_path, is_current, prepare
from trimaran.data.prompts import (
    Dataset,
    ImageLimits,
    ImageSizes,
    UnusableImageError,
    open_datasets,
)
from trimaran.data.recipes import RECIPES, mapped
from trimaran.data.sources import CARD, Source, find_sources
from trimaran.data.templates import TEMPLATES
from trimaran.errors import InputError
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt, images_in

NO_MODEL = "none"
"""The model path of a dataset that is shown without a model."""
SHOWN_REASONS = 12
"""Why rows were dropped; images alone may have as many reasons as there are sizes."""


def prepare_all(options: argparse.Namespace) -> int:
    plan = _plan(options)
    sources = find_sources(options.source, options.split)
    for source, path in _targets(sources, Path(options.output)):
        if not options.overwrite and is_current(source, plan, path):
            print(f"{path}: is current; --overwrite makes it again")
            continue
        card = prepare(source, plan, path, count_tokens, options.workers)
        print("\n".join(_describe(path, card)))
    if options.thinking is not None:
        print(f"tokens are counted as of a run with {_thinking_key(options)}")
    return 0


def _thinking_key(options: argparse.Namespace) -> str:
    value = "true" if options.thinking == "on" else "false"
    return f"data.chat_template_kwargs.enable_thinking={value}"


def count_tokens(plan: PreparePlan) -> CountTokens:
    """In each process that prepares rows."""
    assert plan.model
    kwargs = None if plan.thinking is None else {"enable_thinking": plan.thinking}
    tokenizer = ChatTokenizer(plan.model, template_kwargs=kwargs)
    return lambda messages: len(tokenizer.tokenize(messages))


def _plan(options: argparse.Namespace) -> PreparePlan:
    if options.max_prompt_tokens is not None and not options.model:
        raise InputError("--max-prompt-tokens: give --model FOLDER, whose tokenizer counts")
    if options.thinking is not None and not options.model:
        raise InputError(
            "--thinking: is for counting tokens; give --model FOLDER, whose chat template writes it. The run"
            f" itself needs {_thinking_key(options)}"
        )
    if options.min_pixels > options.max_pixels:
        raise InputError(
            f"--min-pixels {options.min_pixels}: is more than --max-pixels {options.max_pixels}"
        )
    recipe = RECIPES[options.name]
    recipe = replace(recipe, keys=mapped(recipe, options.map))
    if taken := sorted(set(options.keep) & set(recipe.columns)):
        raise InputError(
            f"--keep {taken[0]}: the file has a column of that name of its own; rename the source's"
        )
    return PreparePlan(
        recipe,
        TEMPLATES[options.template or recipe.template],
        system=options.system,
        thinking=None if options.thinking is None else options.thinking == "on",
        mapped=tuple(filter(None, (word.partition("=")[2] for word in options.map))),
        keep=tuple(options.keep),
        unique=options.unique or recipe.unique,
        max_tokens=options.max_prompt_tokens,
        model=Path(options.model) if options.model else None,
        min_pixels=options.min_pixels,
        max_pixels=options.max_pixels,
        limit=options.limit,
        hold_out=options.hold_out,
        seed=options.seed,
    )


def _targets(sources: Sequence[Source], output: Path) -> Iterator[tuple[Source, Path]]:
    if output.suffix != ".parquet":
        yield from ((source, output / f"{source.name}.parquet") for source in sources)
        return
    if len(sources) > 1:
        names = ", ".join(source.name for source in sources)
        raise InputError(
            f"-o {output}: one file for {names}; name a folder, or take one with --split"
        )
    yield sources[0], output


def _describe(path: Path, card: CardTree) -> Iterator[str]:
    tokens = card.get("tokens")
    lengths = f"; {tokens['min']} to {tokens['max']} tokens" if tokens else ""
    rows = card["rows"]
    held_out = f", {rows['held_out']} in {held_out_path(path).name}" if rows["held_out"] else ""
    yield f"{path}: {rows['written']} rows of {rows['read']}{held_out}{lengths}"
    shown, more = card["dropped"][:SHOWN_REASONS], card["dropped"][SHOWN_REASONS:]
    for dropped in shown:
        yield f"  {dropped['rows']} dropped: {dropped['reason']} (first: {dropped['first'][0]})"
    if more:
        number = sum(dropped["rows"] for dropped in more)
        yield f"  {number} dropped for {len(more)} other reasons: {path.stem}{CARD} has them"
    for name in card.get("absent", ()):
        yield f"  --keep {name}: no row has it"


def read_config(named: str, overrides: Sequence[str]) -> RunConfig:
    """The configuration in a run's YAML file, or one for a dataset's file with the overrides."""
    if Path(named).suffix in (".yaml", ".yml"):
        return load_config(named, overrides)
    tree = {
        "model": {"path": NO_MODEL},
        "data": {"train": named},
        "reward": {"rules": {"exact_match": 1.0}},
    }
    config = parse_config(resolve_tree(tree, Path.cwd(), overrides), named)
    if config.data.has_images and config.model.path == Path.cwd() / NO_MODEL:
        raise InputError(
            f"{named}: its images are prepared for a model: give model.path=FOLDER, in which a config.json is"
            " enough"
        )
    return config


def show(options: argparse.Namespace) -> int:
    config = read_config(options.config, options.overrides)
    prompts = (HeldOutPrompts if options.validation else TrainingPrompts).open(config)
    if options.validation and not len(prompts):
        raise InputError("--validation: the run has no data.validation")
    tokens = PromptTokens.of(config)
    if tokens is None:
        print(f"{config.model.path}: no such model; texts are shown without its chat template")
    elif reported := tokens.tokenizer.describe_options():
        print(f"data.chat_template_kwargs: {reported}")
    last = options.first + options.count
    for number in range(options.first, min(last, len(prompts)) if options.validation else last):
        try:
            prompt = asyncio.run(prompts.fetch(number))
        except UnusableImageError as error:
            print(f"--- {number}: {error.prompt.prompt_id}, skipped: {error}")
            continue
        print("\n".join(_shown(number, prompt, tokens)))
        if options.images:
            _write_images(number, prompt, Path(options.images))
    return 0


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """What a replica of the run makes of prompts."""

    tokenizer: ChatTokenizer
    image_token: int | None
    """None of a model that takes no images."""
    multiple: int
    """Pixels along the side of a square that is one token."""
    most: int
    """Tokens of a prompt."""

    @classmethod
    def of(cls, config: RunConfig) -> PromptTokens | None:
        """None where the model is not here."""
        model = config.model.path
        if not model.is_dir():
            return None
        tokenizer = ChatTokenizer.of(config, takes_images=True)
        multiple = image_multiple(model) if config.data.has_images else 1
        return cls(tokenizer, image_token(model), multiple, config.rollout.max_prompt_tokens)

    def count(self, token_ids: Sequence[int], images: Sequence[bytes]) -> int:
        """With all places of images, of each of which the chat template writes one."""
        return len(token_ids) + sum(num_tokens(image, self.multiple) - 1 for image in images)

    def check(self, token_ids: Sequence[int], images: Sequence[bytes]) -> None:
        """Raises InputError for a prompt that a run would skip."""
        if self.image_token is not None:
            check_image_tokens(token_ids, self.image_token, len(images))
        if (tokens := self.count(token_ids, images)) > self.most:
            raise InputError(f"{tokens} tokens; rollout.max_prompt_tokens is {self.most}")


def _shown(number: int, prompt: Prompt, tokens: PromptTokens | None) -> Iterator[str]:
    yield f"--- {number}: {prompt.prompt_id}, task {prompt.task}"
    images = images_in(prompt.messages)
    if tokens is None:
        yield from map(_line, prompt.messages)
    else:
        token_ids = tokens.tokenizer.tokenize(prompt.messages, prompt.tools)
        yield tokens.tokenizer.show(token_ids)
        yield f"... {tokens.count(token_ids, images)} tokens"
        try:
            tokens.check(token_ids, images)
        except InputError as error:
            yield f"... skipped: {error}"
    yield from (f"... {name}: {text[:200]}" for name, text in _beside(prompt))


def _line(message: Message) -> str:
    calls = (f"{call.name}({call.arguments})" for call in message.tool_calls)
    return " ".join(filter(None, (f"[{message.role}]", message.text, *calls)))


def _beside(prompt: Prompt) -> Iterator[tuple[str, str]]:
    for number, data in enumerate(images_in(prompt.messages), 1):
        width, height = open_image(data).size
        yield f"image {number}", f"{width} x {height} pixels, {len(data)} bytes as PNG"
    if prompt.tools:
        yield "tools", ", ".join(tool.name for tool in prompt.tools)
    yield "answer", prompt.answer
    yield from prompt.extras.items()


def _write_images(number: int, prompt: Prompt, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for place, data in enumerate(images_in(prompt.messages), 1):
        path = folder / f"{number}-{place}.png"
        path.write_bytes(data)
        print(f"... {path}")


def check(options: argparse.Namespace) -> int:
    """Every row as a run would have it; 1 where one is bad. Raises InputError where it is the rules that are wrong."""
    config = read_config(options.config, options.overrides)
    make_terms(config, Allowed.from_environment())
    sections = (*config.data.train, *config.data.validation)
    model = config.model.path
    sizes = ImageSizes.of(config.data, model)
    tokens = PromptTokens.of(config)
    if tokens is None:
        print(f"{model}: no such model; the tokens of prompts are not counted")
    num_bad = 0
    for dataset in open_datasets(sections, sizes, ImageLimits.of(config.rollout)):
        num_bad += _check_dataset(config, dataset, options.limit - num_bad, tokens)
    return int(num_bad > 0)


def _check_dataset(
    config: RunConfig, dataset: Dataset, limit: int, tokens: PromptTokens | None
) -> int:
    num_rows = num_bad = 0
    for entry in dataset.entries():
        num_rows += 1
        try:
            if isinstance(entry, InputError):
                raise entry
            place = str(dataset.section.path.parent / entry.prompt_id)
            check_row(config, entry, place)
            if tokens:
                _check_tokens(tokens, entry, place)
        except InputError as error:
            num_bad += 1
            if num_bad <= limit:
                print(error)
    print(f"{dataset.section.path}: {num_rows} rows, {num_bad} of them bad")
    return num_bad


def _check_tokens(tokens: PromptTokens, prompt: Prompt, place: str) -> None:
    try:
        tokens.check(
            tokens.tokenizer.tokenize(prompt.messages, prompt.tools), images_in(prompt.messages)
        )
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
