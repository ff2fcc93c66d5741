"""One small client a service; they speak our types, not messages.

`RunClient`, and `AsyncRunClient` for asyncio, are the public ones. The others take the controller's `Caller` once.
"""

from trimaran.clients.assembly import GroupAssembly
from trimaran.clients.base import CONTROL_SECONDS
from trimaran.clients.controller import ControllerClient, ControllerStatus
from trimaran.clients.environment import EnvironmentClient
from trimaran.clients.follower import FollowerClient
from trimaran.clients.metrics import MetricsClient
from trimaran.clients.reward import RewardClient
from trimaran.clients.rollout import RolloutClient
from trimaran.clients.run import AsyncRunClient
from trimaran.clients.run_sync import RunClient
from trimaran.clients.trainer import TrainAnswer, TrainerClient
from trimaran.clients.weight_sync import Registration, WeightSyncClient

__all__ = [
    "CONTROL_SECONDS",
    "AsyncRunClient",
    "ControllerClient",
    "ControllerStatus",
    "EnvironmentClient",
    "FollowerClient",
    "GroupAssembly",
    "MetricsClient",
    "Registration",
    "RewardClient",
    "RolloutClient",
    "RunClient",
    "TrainAnswer",
    "TrainerClient",
    "WeightSyncClient",
]
