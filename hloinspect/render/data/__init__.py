"""Results as JSON and CSV, rules as records and as pages of docs."""
