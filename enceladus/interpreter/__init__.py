"""The NumPy engine: kernels program by program, and the reference meaning of the tile IR."""
