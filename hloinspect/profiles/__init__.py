"""Readers of profiles into one model of events, and writers of profiles."""
