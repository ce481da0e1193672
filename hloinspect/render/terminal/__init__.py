"""Results as lines for a terminal and a log."""
