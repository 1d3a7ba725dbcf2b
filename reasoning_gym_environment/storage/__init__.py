"""Files: an append-only log of JSON lines, samples and groups as lines, and writers that lose nothing."""
