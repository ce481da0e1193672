"""Measurements from a trace: rates, and the timeline of a run."""
