"""Timelines as traces: Perfetto and XSpace."""
