"""`reward.custom_reward_function.path=pkg://reasoning_gym_environment.verl`; see integrations/verl.py.

The import is absolute, because verl before 0.7 loads a reward function from the path of a file only.
"""

from reasoning_gym_environment.integrations.verl import (
    UnscoredError,
    compute_score,
    compute_scores,
)

__all__ = ["UnscoredError", "compute_score", "compute_scores"]
