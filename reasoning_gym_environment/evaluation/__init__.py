"""Held-out questions, how they are asked and graded, what the results say."""
