"""`from reasoning_gym_environment.skyrl import register, mask_unscored`; see integrations/skyrl.py."""

from .integrations.skyrl import ENV_CLASS, ReasoningGymSkyRLEnv, mask_unscored, register

__all__ = ["ENV_CLASS", "ReasoningGymSkyRLEnv", "mask_unscored", "register"]
