"""Memory of a step: live ranges, packing, XLA's buffer assignment, and the estimate."""
