"""Solvers that read only the text of a question, by the kind of the task. check.py runs them."""
