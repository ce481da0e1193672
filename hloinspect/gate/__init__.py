"""Budgets: what a step may cost, and whether it does."""
