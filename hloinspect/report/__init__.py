"""The contract: the records of a report, and how they are filled from a module, a trace and a manifest."""
