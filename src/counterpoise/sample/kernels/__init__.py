"""Triton kernels of the sampler, in any precision. Each has its formula in torch beside it."""
