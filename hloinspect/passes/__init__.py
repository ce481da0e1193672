"""Ledger of compiler passes: which pass made a copy of a placement, dropped it, or made it asynchronous."""
