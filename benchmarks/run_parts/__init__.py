"""Common parts of the benchmarks with real runs: inference servers, a trainer, the process table, the dumps."""
