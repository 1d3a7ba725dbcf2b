"""Commands that a person runs beside training: audit, export, preview, regrade, tasks."""
