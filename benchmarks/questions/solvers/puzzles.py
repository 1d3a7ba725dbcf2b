"""Tasks of puzzles."""
