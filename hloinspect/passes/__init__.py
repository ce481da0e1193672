"""The ledger of compiler passes: which pass turned a placement into a copy, dropped it, or made it asynchronous."""
