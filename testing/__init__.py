"""Mock servers, a byte tokenizer, a simulation of a run and of run-api, and helpers for processes.

The tests, the benchmarks and the demo use them. They are not part of the installed package.
"""
