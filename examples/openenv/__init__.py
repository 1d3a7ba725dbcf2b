"""A Space for OpenEnv (README.md)."""
