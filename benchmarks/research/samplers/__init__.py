"""Task policies that benchmarks/research/real_learning.py compares with the policy of the package."""
