"""Decide whether an answer is right, and guard reasoning-gym's verifiers against hostile answers."""
