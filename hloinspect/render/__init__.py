"""Results as text, pages, CI reports, traces and data."""
