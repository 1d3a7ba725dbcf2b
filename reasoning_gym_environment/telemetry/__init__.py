"""What a run tells: metrics, group outcomes, dumps and tables of rollouts, a sign of reward hacking."""
