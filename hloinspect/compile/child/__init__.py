"""The child process of a compilation: all that imports jax."""
