"""Compile a step for hardware that is not there, in a child process.

Only the child imports jax, so an abort in XLA or an exception in the user's code is one error here.
"""
