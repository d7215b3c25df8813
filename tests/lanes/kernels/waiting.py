"""Programs of persistent grids that wait for what others leave."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import triton
import triton.language as tl

import tests.lanes.kernels.launch  # noqa: F401, what a jit function is depends on it


@triton.jit
def sums_of_later_ones(values, partial, locks, out, COUNT: tl.constexpr):
    """Each program hands on the sum of its own and all later values; the first one stores it."""
    me = tl.program_id(0)
    total = tl.load(values + me)
    if me + 1 < COUNT:
        while tl.atomic_cas(locks + me + 1, 1, 1) != 1:
            pass
        total += tl.load(partial + me + 1)
    tl.store(partial + me, total)
    tl.debug_barrier()
    tl.atomic_xchg(locks + me, 1)
    if me == 0:
        tl.store(out, total)


@triton.jit
def two_that_wait(locks):
    """Each of two programs waits for the other one's lock before it takes its own."""
    me = tl.program_id(0)
    while tl.atomic_cas(locks + 1 - me, 1, 1) != 1:
        pass
    tl.atomic_xchg(locks + me, 1)


@triton.jit
def asks_often(counts, out, TIMES: tl.constexpr):
    """A lock is taken and left in each of many rounds, which is no waiting."""
    me = tl.program_id(0)
    for _ in range(TIMES):
        while tl.atomic_cas(counts, 0, 1) != 0:
            pass
        tl.store(out, tl.load(out) + me)
        tl.atomic_xchg(counts, 0)
