"""Common parts of the benchmarks with real runs: `serve` with all around it, inference servers, the process table."""
