"""Triton kernels of the sampler, for any precision. Each has its formula in torch beside it."""
