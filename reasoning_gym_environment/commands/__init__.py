"""Commands that a person runs beside training: audit, export, levels, tasks, and servers."""
