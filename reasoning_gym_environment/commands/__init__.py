"""Commands of our own that a person runs: dumps, tasks, preview."""
