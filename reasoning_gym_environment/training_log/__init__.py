"""What a run tells: metrics, group outcomes, dumps of rollouts (written here, and read) and tables for wandb.

`training_log` is the door of the room; `dump_files` is what reads dumps.
"""
