"""Commands that a person runs beside training: audit, export, regrade, tasks."""
