"""`from reasoning_gym_environment.trl import GRPOTasks`; see integrations/trl.py."""

from .integrations.trl import GRPOTasks

__all__ = ["GRPOTasks"]
