"""Turn completions into rewards: extraction, score, length penalty."""
