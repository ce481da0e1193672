"""Rates that a machine reaches, and what kernels take, from a profile of it."""
