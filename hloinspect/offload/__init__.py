"""Finds host transfers, pairs round trips."""
