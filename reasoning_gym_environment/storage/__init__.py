"""Files of JSON lines: an append-only log, a reader, and the form of a group of rollouts as a line."""
