"""What a run tells: metrics, group outcomes, dumps and tables of rollouts, signs of reward hacking."""
