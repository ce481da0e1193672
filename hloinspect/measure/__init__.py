"""What a trace says: measured rates, and the timeline of a run."""
