"""Which item comes next: the stream, its tasks and levels, and what became of each item."""
