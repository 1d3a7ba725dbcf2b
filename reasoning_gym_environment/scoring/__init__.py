"""From a completion to its reward: extraction, score, length penalty."""
