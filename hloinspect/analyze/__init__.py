"""Answers on an input: a step, a module or a dump (inspect), or a profile (trace)."""
