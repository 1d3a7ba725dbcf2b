"""The tasks in other trainers and evaluation libraries, each a small module over api.py."""
