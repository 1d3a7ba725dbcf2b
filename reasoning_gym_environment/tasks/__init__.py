"""The tasks of reasoning-gym: the import of the library, the served tasks, their difficulty, and measurements."""
