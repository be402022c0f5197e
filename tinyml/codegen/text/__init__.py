"""LinearKernel to source text, in C and in CUDA C."""
