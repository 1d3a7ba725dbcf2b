"""What soak.py is made of: a student in a process of its own, a trainer, the process table, a look at the dumps."""
