"""Real runs in which something breaks, for tests/slow/test_faults.py and benchmarks/faults.py."""
