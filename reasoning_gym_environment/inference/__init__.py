"""From a prompt to completions: rendering, the kinds of server, which of them works."""
