"""Where items are made and answers graded: in processes of their own, away from the event loop."""
