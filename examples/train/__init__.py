"""Train a language model with GRPO through the environment: `python -m examples.train --help`."""
