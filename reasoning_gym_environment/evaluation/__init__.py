"""Held-out questions, their evaluation, and its results."""
