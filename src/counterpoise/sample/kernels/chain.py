"""Kernels that follow each other without a gap: programmatic dependent launch, Hopper and later.

Usually the GPU launches a kernel when the one before it has ended. Launched with `launch_pdl=True`,
its programs are set up while that one still runs, and wait at their first line until it has written
everything. Since every kernel of a chain waits, all earlier ones have ended too.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_kernel_before(chained: tl.constexpr):
    """The first line of a kernel; does nothing where kernels are not chained."""
    if chained:
        gdc_wait()
        gdc_launch_dependents()


def launch_options(chained: bool) -> dict[str, bool]:
    """Keywords of a launch. Without a chain `launch_pdl` is left out: the interpreter, in which
    kernels are tested, does not know it."""
    return {"chained": True, "launch_pdl": True} if chained else {"chained": False}
