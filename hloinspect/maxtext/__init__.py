"""MaxText's train step: which of its decoder's tensors are offloaded, saved and recomputed."""
