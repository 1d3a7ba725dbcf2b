"""What a run tells: metrics, group outcomes, rollout dumps, tables for wandb."""
