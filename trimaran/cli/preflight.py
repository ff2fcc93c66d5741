"""Everything that can be known to be wrong before anything is started.

Each check raises one InputError that names the key or the file and what would be right.
"""

from __future__ import annotations

from pathlib import Path

from services.controller.datasets import load_prompts
from services.reward.rules import RULES, check_rules
from trimaran.config import DataSection, RunConfig
from trimaran.errors import InputError
from trimaran.model_folder import ModelFacts, check_tensor_parallel, read_model_folder
from trimaran.rpc import check_loopback
from trimaran.types import Prompt


def check_run(config: RunConfig) -> None:
    facts = read_model_folder(config.model.path)
    check_tensor_parallel(facts, config.rollout.tensor_parallel, "rollout.tensor_parallel")
    check_tensor_parallel(facts, config.trainer.tensor_parallel, "trainer.tensor_parallel")
    check_lengths(config, facts)
    check_rules(config.reward.rules)
    check_dataset(config.data.train, config.data, tuple(config.reward.rules))
    if config.data.validation:
        check_dataset(config.data.validation, config.data, tuple(config.reward.rules))
    check_endpoints(config)


def check_lengths(config: RunConfig, facts: ModelFacts) -> None:
    if config.max_model_tokens > facts.max_positions:
        raise InputError(
            f"rollout.max_prompt_tokens + rollout.max_tokens: {config.max_model_tokens} is more"
            f" than the {facts.max_positions} positions of the model; lower one of them"
        )


def check_dataset(path: Path, data: DataSection, rules: tuple[str, ...]) -> None:
    for prompt in load_prompts(path, data):
        for rule in rules:
            check_answer(prompt, rule, path.parent / prompt.prompt_id)


def check_answer(prompt: Prompt, rule: str, place: Path) -> None:
    """A rule refuses a reference answer that it cannot work with: better now than in the run."""
    try:
        RULES[rule].function("", prompt.answer, prompt.extras)
    except ValueError as error:
        raise InputError(
            f"{place}: reward.rules.{rule} cannot use this row: {error};"
            " correct the row, or choose another rule or data.answer_key"
        ) from None


def check_endpoints(config: RunConfig) -> None:
    for key, value in config.endpoints:
        for address in (value,) if isinstance(value, str) else value or ():
            try:
                check_loopback(address)
            except InputError as error:
                raise InputError(f"endpoints.{key}: {error}") from None
