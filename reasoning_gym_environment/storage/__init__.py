"""Files of JSON lines: one append-only log, one reader, and what a line says of a group of rollouts."""
