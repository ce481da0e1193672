"""Rates that a machine reaches, and times of its kernels, from a profile of it."""
