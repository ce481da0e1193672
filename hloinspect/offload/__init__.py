"""Host transfers of a module, and the round trips that they form."""
