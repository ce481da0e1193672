"""Results as JSON and CSV."""
