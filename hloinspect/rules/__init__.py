"""Rules: every known way in which an offload goes wrong, found in a report and explained.

A rule is one function over the `Evidence` (evidence.py); its docstring is its page in docs/rules/. `registry.RULES`
lists them all, `engine.run_rules` runs them. Rules never parse: they use what the readers and the analyses have found.
"""
