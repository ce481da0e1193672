"""Placements that a program requests in host memory, and what the compiled module makes of them."""
