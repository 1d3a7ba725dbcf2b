"""What every room may use: outages and repeated events in the log, deadlines, threads, the terminal."""
