"""Tasks of texts."""
