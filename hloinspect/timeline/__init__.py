"""The Timeline: who works when, in exact picoseconds; intervals, and loops laid out."""
