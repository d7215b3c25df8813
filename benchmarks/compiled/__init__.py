"""Compiles on a CPU, for each architecture, the Triton kernels that a target launches."""
