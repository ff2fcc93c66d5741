"""A run's whole configuration, and what only shows when its sections are seen together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from pydantic import Field, model_validator

from trimaran.config.algorithm import AlgorithmSection
from trimaran.config.data import DataSection, ModelSection
from trimaran.config.environment import EnvironmentSection
from trimaran.config.network import Endpoints, NetworkSection, WeightSyncSection
from trimaran.config.recipes import follow_recipe
from trimaran.config.reward import RewardSection
from trimaran.config.rollout import RolloutSection
from trimaran.config.run import MetricsSection, RunSection, ValidationSection
from trimaran.config.section import Section
from trimaran.config.trainer import TrainerSection
from trimaran.config.values import Seconds, as_branch
from trimaran.host.places import is_bucket
from trimaran.telemetry.metrics import is_of_validation
from trimaran.types import ENVIRONMENT_TERM


class RunConfig(Section):
    """All of it. Three keys must be given: model.path, data.train and reward.rules; an environment may reward in
    the place of rules.

    Example: parse_config({"model": {"path": "models/SmolLM2-135M-Instruct"},
    "data": {"train": "train.jsonl"}, "reward": {"rules": {"gsm8k": 1.0}}}).rollout.group_size == 8
    """

    run: RunSection = RunSection()
    model: ModelSection
    data: DataSection
    rollout: RolloutSection = RolloutSection()
    environment: EnvironmentSection | None = None
    reward: RewardSection = RewardSection()
    # Made when it is read: its functions are not imported with this module.
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    trainer: TrainerSection = TrainerSection()
    weight_sync: WeightSyncSection = WeightSyncSection()
    validation: ValidationSection = ValidationSection()
    metrics: MetricsSection = MetricsSection()
    network: NetworkSection = NetworkSection()
    endpoints: Endpoints = Endpoints()
    start_timeout: Seconds = 300
    """When a process starts: how long it may take until it answers, and how long it waits for the
    services that it needs."""
    outage_timeout: Seconds = 300
    """Once the run is under way: how long the controller waits for weight sync, for the reward
    service or for any routable replica while none answers. After that the run ends and can be
    resumed. Give it the time in which a service that died is started again, loads its model and
    is proven."""
    frozen_timeout: Seconds = 60
    """A process that has answered before, and then is silent for so long, is killed and started
    again; so is one that is stopped (SIGSTOP) for so long while it starts, and one that has not
    answered so long after start_timeout. No step, save or load is that silent: they run beside what
    answers. A replica whose vLLM takes no call for so long, though it loads no weights, ends and is
    started again."""

    @model_validator(mode="before")
    @classmethod
    def _follow_recipe(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        given = cast(dict[str, Any], tree)
        has_episodes = given.get("environment") is not None
        name, section = (
            ("environment", EnvironmentSection) if has_episodes else ("rollout", RolloutSection)
        )
        default = section.model_fields["max_tokens"].default
        return follow_recipe(given, (as_branch(given.get(name)) or {}).get("max_tokens", default))

    @model_validator(mode="after")
    def _algorithm_fits(self) -> RunConfig:
        groups, updates = self.run.groups_per_step, self.algorithm.updates_per_batch
        if updates > groups:
            raise ValueError(
                f"algorithm.updates_per_batch ({updates}) must not be more than"
                f" run.groups_per_step ({groups}): an update takes at least one group"
            )
        advantage: Any = self.algorithm.advantage
        sampling = self.algorithm.dynamic_sampling
        if self.rollout.group_size == 1 and advantage.compares_group:
            raise ValueError(
                f"rollout.group_size is 1, and algorithm.advantage: {advantage.type} compares the"
                " completions of a group; give 2 or more, or take remax or reinforce_pp"
            )
        if self.rollout.group_size < (least := advantage.least_group):
            raise ValueError(
                f"rollout.group_size is {self.rollout.group_size}, and with algorithm.advantage:"
                f" {advantage.type} every advantage would be 0 in groups of fewer than {least}; give"
                f" {least} or more, or other options of {advantage.type}"
            )
        if sampling and sampling.term and sampling.term not in self.reward_terms:
            raise ValueError(
                f"algorithm.dynamic_sampling.term: {sampling.term} is none of reward.rules"
                f" ({', '.join(self.reward.rules)})"
            )
        return self

    @model_validator(mode="after")
    def _something_rewards(self) -> RunConfig:
        if not self.reward.rules and (self.environment is None or self.environment.kind == "tools"):
            raise ValueError(
                "reward.rules: missing; name a rule, a function or a plugin"
                + (": tools do not reward an episode" if self.environment else "")
            )
        return self

    @model_validator(mode="after")
    def _images_have_a_way(self) -> RunConfig:
        if self.environment and self.environment.agent and self.data.has_images:
            raise ValueError(
                "environment.agent: a program asks by texts, which would leave the rows' images out; leave"
                " data.image_key out, or take environment.tools or a class in its place"
            )
        return self

    @model_validator(mode="after")
    def _rules_have_tasks(self) -> RunConfig:
        datasets = (*self.data.train, *self.data.validation)
        if any(one.task_key is not None for one in datasets):
            return self  # the rows have their own
        tasks = {one.task: None for one in datasets}
        for name, rule in self.reward.rules.items():
            for task in rule.tasks:
                if task not in tasks:
                    raise ValueError(
                        f"reward.rules.{name}.tasks: {task!r} is the task of no dataset"
                        f" ({', '.join(tasks)}); data.task, or task of a dataset, names it"
                    )
        return self

    @model_validator(mode="after")
    def _validations_can_be_so(self) -> RunConfig:
        section = self.validation
        if section.only and not self.data.validation:
            raise ValueError("validation.only: there is nothing to validate; give data.validation")
        for name in section.correct_by:
            if not any(name == rule or name.startswith(f"{rule}.") for rule in self.reward_terms):
                raise ValueError(
                    f"validation.correct_by: {name} is none of reward.rules"
                    f" ({', '.join(self.reward.rules)}), nor a part of one"
                )
        if section.logged and not self.metrics.sinks:
            raise ValueError(
                "validation.logged sends answers to metrics.sinks, and there are none; name one, or leave"
                " it out: samples/ in the run folder has all answers"
            )
        return self

    @model_validator(mode="after")
    def _checkpoints_can_be_so(self) -> RunConfig:
        run, every = self.run, self.validation.every
        if (
            run.keep_best
            and is_of_validation(run.best_by.removeprefix("-"))
            and (not self.data.validation or run.checkpoint_every % every)
        ):
            raise ValueError(
                f"run.keep_best ({run.keep_best}) compares validations: give data.validation, and a"
                f" run.checkpoint_every (it is {run.checkpoint_every}) that is a multiple of"
                f" validation.every ({every}); or let run.best_by name a number of the step"
            )
        if run.checkpoint_models and run.checkpoints and is_bucket(run.checkpoints):
            raise ValueError(
                f"run.checkpoint_models: in a bucket ({run.checkpoints}) no host has all parts of a"
                " checkpoint; leave it out, and bring those that matter into a folder for `trimaran"
                " convert`"
            )
        return self

    @model_validator(mode="after")
    def _optimizer_fits(self) -> RunConfig:
        if self.trainer.optimizer == "adamw_bf16" and self.trainer.distributed_optimizer:
            raise ValueError(
                "trainer.distributed_optimizer: splits the float32 weights of adamw, and adamw_bf16 has"
                " none; leave one of them out"
            )
        if self.trainer.optimizer == "adamw_bf16" and self.model.dtype != "bfloat16":
            raise ValueError(
                f"trainer.optimizer: adamw_bf16 is for model.dtype bfloat16 (it is {self.model.dtype});"
                " take adamw"
            )
        return self

    @model_validator(mode="after")
    def _adapters_fit(self) -> RunConfig:
        if self.trainer.lora and self.run.checkpoint_models:
            raise ValueError(
                "run.checkpoint_models: with trainer.lora a checkpoint holds the adapters alone; leave it"
                " out, the model is exported at the end"
            )
        if self.trainer.lora and self.algorithm.kl.offload:
            raise ValueError(
                "algorithm.kl.offload: with trainer.lora the reference is the model itself, without its"
                " adapters; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _has_as_many_as_needed(self) -> RunConfig:
        for key, have, want in (
            ("rollout", len(self.endpoints.rollout), self.rollout.replicas),
            ("trainer", len(self.endpoints.trainer), self.num_trainer_ranks),
            ("environment", len(self.endpoints.environment), self.num_environments),
        ):
            if have not in (0, want):
                raise ValueError(f"endpoints.{key} names {have} addresses; {want} are needed")
        for key, devices, want in (
            ("rollout", self.rollout.devices, self.num_rollout_devices),
            ("trainer", self.trainer.devices, self.num_trainer_ranks),
        ):
            if devices != "auto" and len(devices) != want:
                raise ValueError(
                    f"{key}.devices names {len(devices)} devices; {want} are needed"
                    f" ({DEVICES_NEEDED[key]})"
                )
        return self

    @model_validator(mode="after")
    def _pools_can_take_turns(self) -> RunConfig:
        if self.is_colocated and (fault := next(_faults_of_colocated(self), None)):
            raise ValueError(f"run.pools: colocated, and {fault}")
        return self

    @property
    def is_colocated(self) -> bool:
        """Trainer and rollout take turns on the same devices."""
        return self.run.pools == "colocated"

    @property
    def num_rollout_devices(self) -> int:
        return self.rollout.replicas * self.rollout.tensor_parallel

    @property
    def num_trainer_ranks(self) -> int:
        return self.trainer.layout.num_ranks

    @property
    def term_weights(self) -> dict[str, float]:
        """Of the terms of the reward: the rules', and the environment's."""
        weights = {name: rule.weight for name, rule in self.reward.rules.items()}
        return weights | ({ENVIRONMENT_TERM: self.environment.weight} if self.environment else {})

    @property
    def reward_terms(self) -> tuple[str, ...]:
        return tuple(self.term_weights)

    @property
    def num_environments(self) -> int:
        """Processes of the environment service."""
        return self.environment.replicas if self.environment else 0

    @property
    def max_answer_tokens(self) -> int:
        """The longest completion, that trains or answers a held-out prompt; of an episode, with what is given
        between its turns."""
        episode = self.environment.max_tokens if self.environment else 0
        return max(self.rollout.max_tokens, self.validation.max_tokens or 0, episode)

    @property
    def max_answer_key(self) -> str:
        """Which key says so."""
        if self.environment and self.environment.max_tokens == self.max_answer_tokens:
            return "environment.max_tokens"
        is_more = self.max_answer_tokens > self.rollout.max_tokens
        return "validation.max_tokens" if is_more else "rollout.max_tokens"

    @property
    def max_trained_tokens(self) -> int:
        """The longest completion that trains. What bounds an episode is the model's length."""
        return self.max_answer_tokens if self.environment else self.rollout.max_tokens

    @property
    def max_trained_key(self) -> str:
        return self.max_answer_key if self.environment else "rollout.max_tokens"

    @property
    def max_sequences(self) -> int:
        """Of one completion. An episode has one for each turn at most, where turns need not extend what was."""
        section = self.environment
        opens_more = section and (section.agent or section.history == "template")
        return section.max_turns if section and opens_more else 1

    @property
    def max_held_out_tokens(self) -> int:
        """The longest answer to a held-out prompt."""
        own = self.validation.max_tokens or self.rollout.max_tokens
        return self.max_answer_tokens if self.environment else own

    @property
    def num_devices(self) -> int:
        """Devices of both pools; those that they share count once."""
        shared = self.num_rollout_devices if self.is_colocated else 0
        return self.num_trainer_ranks + self.num_rollout_devices - shared

    @property
    def max_model_tokens(self) -> int:
        return self.rollout.max_prompt_tokens + self.max_answer_tokens


def _faults_of_colocated(config: RunConfig) -> Iterator[str]:
    """What keeps the pools from taking turns, with what to change."""
    run, rollout, trainer = config.run, config.rollout, config.trainer
    if run.max_lag:
        yield (
            f"run.max_lag is {run.max_lag}: pools that take turns never generate while they train; set"
            " run.max_lag=0, or run.pools=separate"
        )
    if (have := config.num_rollout_devices) != (want := config.num_trainer_ranks):
        yield (
            f"rollout.replicas x rollout.tensor_parallel ({rollout.replicas} x"
            f" {rollout.tensor_parallel} = {have}) is not the number of trainer ranks ({want},"
            f" {DEVICES_NEEDED['trainer']}): each of the shared devices belongs to one of both"
        )
    if rollout.hosts > 1:
        yield (
            f"rollout.hosts is {rollout.hosts}: turns are taken on the devices of one host; leave it out,"
            " or set run.pools=separate"
        )
    if rollout.max_replicas > rollout.replicas:
        yield (
            f"rollout.max_replicas ({rollout.max_replicas}) is more than rollout.replicas"
            f" ({rollout.replicas}): a replica that is added has no device to share; leave it out"
        )
    if "auto" not in (rollout.device, trainer.device) and rollout.device != trainer.device:
        yield (
            f"trainer.device is {trainer.device}, rollout.device {rollout.device}; name the same kind in"
            " both, or leave one of them out"
        )
    if [name for name, value in trainer.labels.items() if rollout.labels.get(name, value) != value]:
        yield (
            f"trainer.labels ({dict(trainer.labels)}) and rollout.labels ({dict(rollout.labels)}) are of"
            " different pools; name the same in both"
        )
    if "auto" not in (rollout.devices, trainer.devices) and rollout.devices != trainer.devices:
        yield (
            "rollout.devices and trainer.devices name different devices; name the same in both, or leave"
            " one of them out"
        )
    if config.weight_sync.transport == "collective":
        yield (
            "weight_sync.transport is collective: no collective has two ranks on one device; leave it"
            " out, and versions pass through the host's shared memory"
        )
    if config.network.subnet:
        yield (
            "network.subnet is for several hosts, and turns are taken on the devices of one; leave it out,"
            " or set run.pools=separate"
        )


DEVICES_NEEDED = {
    "rollout": "rollout.replicas x rollout.tensor_parallel",
    "trainer": "trainer.tensor_parallel x pipeline_parallel x data_parallel x context_parallel",
}
