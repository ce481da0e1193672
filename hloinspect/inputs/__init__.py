"""Inputs of the commands: their kinds, manifests, dumps, and profiles behind URLs."""
