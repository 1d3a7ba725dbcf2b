"""Task policies that benchmarks/research/real_learning.py compares with those of the package."""
