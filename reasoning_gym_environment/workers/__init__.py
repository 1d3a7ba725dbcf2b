"""Worker processes that make items and grade answers, away from the event loop."""
