"""`from reasoning_gym_environment.openenv import ReasoningGymOpenEnv`; see integrations/openenv.py."""

from .integrations.openenv import Completion, Question, ReasoningGymOpenEnv, build_app

__all__ = ["Completion", "Question", "ReasoningGymOpenEnv", "build_app"]
