"""The configuration of a run: a tree of sections, read from YAML and checked as a whole.

    config = load_config("run.yaml", ["trainer.learning_rate=1e-5"])
    config.trainer.learning_rate == 1e-5

Unknown keys are errors; the message suggests the closest valid key. One `InputError` lists
everything that is wrong, a line each. Relative paths start at the folder of the YAML file.
"""

from __future__ import annotations

from trimaran.config.algorithm import AlgorithmSection
from trimaran.config.data import DataSection, DatasetSection, ModelSection, RowSection
from trimaran.config.environment import AgentSection, EnvironmentSection, McpSection
from trimaran.config.load import (
    config_to_tree,
    dump_config,
    load_config,
    load_tree,
    override_value,
    parse_config,
    parse_recorded,
    resolve_tree,
    set_override,
)
from trimaran.config.network import Endpoints, NetworkSection, WeightSyncSection
from trimaran.config.reward import PluginSection, RuleSection
from trimaran.config.rollout import RolloutSection
from trimaran.config.run import LENGTH_KEYS, MetricsSection, RunSection, ValidationSection
from trimaran.config.trainer import LoraSection, RouterSection, TrainerSection
from trimaran.config.tree import DEVICES_NEEDED, RunConfig
from trimaran.config.values import (
    LAST_PORT,
    MAX_COUNT,
    MAX_DATASETS,
    MAX_SHARE,
    Address,
    NonNegative,
    PlaceUrl,
    Positive,
    SchemeName,
    Seconds,
    SinkName,
    TransportName,
    is_device_list,
)

__all__ = [
    "DEVICES_NEEDED",
    "LAST_PORT",
    "LENGTH_KEYS",
    "MAX_COUNT",
    "MAX_DATASETS",
    "MAX_SHARE",
    "Address",
    "AgentSection",
    "AlgorithmSection",
    "DataSection",
    "DatasetSection",
    "Endpoints",
    "EnvironmentSection",
    "LoraSection",
    "McpSection",
    "MetricsSection",
    "ModelSection",
    "NetworkSection",
    "NonNegative",
    "PlaceUrl",
    "PluginSection",
    "Positive",
    "RolloutSection",
    "RouterSection",
    "RowSection",
    "RuleSection",
    "RunConfig",
    "RunSection",
    "SchemeName",
    "Seconds",
    "SinkName",
    "TrainerSection",
    "TransportName",
    "ValidationSection",
    "WeightSyncSection",
    "config_to_tree",
    "dump_config",
    "is_device_list",
    "load_config",
    "load_tree",
    "override_value",
    "parse_config",
    "parse_recorded",
    "resolve_tree",
    "set_override",
]
