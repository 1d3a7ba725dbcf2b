"""Training runs of the student of level_student.py in real trainers, over a store of levels and without a model.

Each module is a program for the environment of its trainer: `python -m testing.curriculum_runs.verl STORE GROUPS`.
"""
