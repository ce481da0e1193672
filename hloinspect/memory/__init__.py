"""What lies in memory when: live ranges, packing, XLA's buffer assignment, and the estimate."""
