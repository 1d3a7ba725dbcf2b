"""Utilities for every package: logs of outages and repeated events, deadlines, threads, and the terminal."""
