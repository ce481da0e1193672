"""The report's schema and one file a format."""
