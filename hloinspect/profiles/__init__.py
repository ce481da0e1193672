"""Readers of profiles into one model of events, and what writes profiles."""
