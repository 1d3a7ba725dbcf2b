"""Every setting, with its description and the commands that use it."""
