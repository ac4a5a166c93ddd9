"""Triton kernels of the sampler, for any precision. Each names the file with its torch formula."""
