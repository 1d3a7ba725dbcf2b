"""`from reasoning_gym_environment.trl import GRPOTasks`; see integrations/trl.py."""

from . import GRPOTasks

__all__ = ["GRPOTasks"]
