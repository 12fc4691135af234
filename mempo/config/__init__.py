"""Settings of the library: frozen, strict, two levels deep, every field explained.

These models are also the form that Prefect shows and the record that MLflow keeps, so a
description here is the help text a user reads. Light to import: no torch.
"""

from mempo.config.acting import Agent, Environment, Policy, Rollout, writes_memory
from mempo.config.base import AgentKind, Fraction, Positive, Settings
from mempo.config.credit import Memory, Reward
from mempo.config.experiment import Experiment
from mempo.config.learning import Audit, Learner, Loss, Sft
from mempo.config.running import Checkpoint, Cluster, Evaluate, Price, Tracking

__all__ = [
    "Agent",
    "AgentKind",
    "Audit",
    "Checkpoint",
    "Cluster",
    "Environment",
    "Evaluate",
    "Experiment",
    "Fraction",
    "Learner",
    "Loss",
    "Memory",
    "Policy",
    "Positive",
    "Price",
    "Reward",
    "Rollout",
    "Settings",
    "Sft",
    "Tracking",
    "writes_memory",
]
