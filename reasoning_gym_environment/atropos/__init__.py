"""Everything between this environment and Atropos: run-api, the loop, checkpoints, the end, the command line."""
