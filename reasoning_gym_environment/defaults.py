"""The set-up of a training run for whoever gives no other."""

from __future__ import annotations

from atroposlib.envs.base import APIServerConfig, EvalHandlingEnum

from .config import ReasoningGymEnvConfig

DEFAULT_MODEL = "NousResearch/DeepHermes-3-Llama-3-8B-Preview"
DEFAULT_SERVER_URL = "http://localhost:9004/v1"


def default_configs() -> tuple[ReasoningGymEnvConfig, list[APIServerConfig]]:
    """The values of `config_init`: a ready training set-up with one vLLM server on this machine."""
    config = ReasoningGymEnvConfig(
        tokenizer_name=DEFAULT_MODEL,
        group_size=8,
        use_wandb=True,
        rollout_server_url="http://localhost:8000",
        total_steps=250,
        seed=1918,
        batch_size=1024,
        steps_per_eval=25,
        max_token_length=8192,
        inference_weight=4.0,
        wandb_name="reasoning_gym_think",
        eval_handling=EvalHandlingEnum.NONE,
        eval_limit_ratio=0.1,
        num_rollouts_per_group_for_logging=4,
        num_rollouts_to_keep=50,
        rollout_save_score_threshold=0.51,
        num_eval_samples_per_task=5,
        eval_seed=123,
        complexity_mode="random",
        task_sampling="learnability",
        partial_credit="floor",
        curriculum_target_accuracy=0.7,
        min_batch_allocation=0.1,
    )
    server = APIServerConfig(
        model_name=DEFAULT_MODEL,
        base_url=DEFAULT_SERVER_URL,
        api_key="x",
        num_max_requests_at_once=128,
        num_requests_for_eval=256,
        server_type="vllm",
    )
    return config, [server]
