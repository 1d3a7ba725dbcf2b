"""Every setting, with its description."""
