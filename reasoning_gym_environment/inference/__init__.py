"""From a prompt to completions: rendering, the types of servers, the choice of a server, costs."""
