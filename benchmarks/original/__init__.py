"""The comparison with the original environment: compare.py and its parts."""
