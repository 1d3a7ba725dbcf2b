"""What the demo and its environment process agree on."""

EVENTS_FD = "REASONING_GYM_DEMO_EVENTS_FD"
"""Environment variable with the number of the file descriptor that takes events, as JSON lines."""
