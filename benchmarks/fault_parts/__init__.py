"""What faults.py is made of."""
