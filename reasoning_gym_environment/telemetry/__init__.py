"""Metrics and logs of a run: metrics, group outcomes, dumps and tables of rollouts, alarms."""
