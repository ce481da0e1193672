"""What a program requests of host memory, and what the compiled module does of it."""
