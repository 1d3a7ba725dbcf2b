"""Task policies that benchmarks/real_learning.py compares with those of the package."""
