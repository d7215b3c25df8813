"""Programs that meet: atomics, locks, shared places. The order of programs decides the bytes."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import torch
import triton
import triton.language as tl

from tests.lanes.kernels.launch import Launch, Random, floats, integers, number, pick


@triton.jit
def counted(x, totals, best, length, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Atomics whose old values nobody looks at, in one statement or in two."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < length
    value = tl.load(x + places, mask=inside, other=0)
    if KIND == 0:
        tl.atomic_add(totals + value % 4, 1, mask=inside)
        tl.atomic_max(best, tl.max(value, 0))
    elif KIND == 1:
        tl.atomic_add(totals, tl.sum(value, 0))
        tl.atomic_add(totals, 3)
        tl.atomic_xor(best, tl.program_id(0))
    elif KIND == 2:
        tl.atomic_min(best + value % 2, value, mask=inside)
        tl.atomic_or(totals + value % 4, value, mask=inside)
    else:
        tl.atomic_and(totals + places % 4, value % 8 + 16, mask=inside)
        tl.atomic_add(best, 1)
        tl.atomic_max(best, 2)


def draw_counted(random: Random) -> Launch:
    length, block = number(random, 1, 20), pick(random, 2, 4, 8)
    return Launch(
        counted,
        (triton.cdiv(length, block),),
        (
            integers(random, 0, 30, length),
            torch.full((4,), 31, dtype=torch.int32),
            torch.full((2,), 9, dtype=torch.int32),
            length,
        ),
        {"KIND": number(random, 0, 3), "BLOCK": block},
    )


@triton.jit
def added_floats(x, out, columns, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of floats by atomics depend on the order of the programs."""
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    inside = places < columns
    value = tl.load(x + row * columns + places, mask=inside, other=0.0)
    tl.atomic_add(out + places, value, mask=inside)
    if KIND == 1:
        tl.atomic_add(out + places, value * 0.3, mask=inside)
    elif KIND == 2:
        if tl.load(x + row * columns) > 0:
            tl.atomic_add(out + places, value * 0.7, mask=inside)
        else:
            tl.atomic_add(out + places, value * 0.1, mask=inside)


def draw_added_floats(random: Random) -> Launch:
    rows, columns = number(random, 1, 7), number(random, 1, 8)
    return Launch(
        added_floats,
        (rows,),
        (floats(random, rows, columns) * 100, torch.zeros(columns), columns),
        {"KIND": number(random, 0, 2), "BLOCK": triton.next_power_of_2(columns)},
    )


@triton.jit
def tickets(counter, out, lock, KIND: tl.constexpr):
    """Old values in use: tickets, the last program's work, a lock."""
    program = tl.program_id(0)
    if KIND == 0:
        tl.store(out + tl.atomic_add(counter, 1), program)
    elif KIND == 1:
        tl.store(out + program, program * 2)
        if tl.atomic_add(counter, 1) == tl.num_programs(0) - 1:
            tl.store(lock, tl.load(out) + tl.load(out + program))
    elif KIND == 2:
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(counter, tl.load(counter) * 3 + program)
        tl.atomic_xchg(lock, 0)
    else:
        tl.store(out + program, tl.atomic_xchg(counter, program + 1))


def draw_tickets(random: Random) -> Launch:
    programs = number(random, 1, 6)
    return Launch(
        tickets,
        (programs,),
        (
            torch.zeros(1, dtype=torch.int32),
            torch.full((8,), -1, dtype=torch.int32),
            torch.zeros(1, dtype=torch.int32),
        ),
        {"KIND": number(random, 0, 3)},
    )


@triton.jit
def shared(x, out, other, length, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Plain accesses of several programs to one place, in either order."""
    program = tl.program_id(0)
    places = program * BLOCK + tl.arange(0, BLOCK)
    inside = places < length
    value = tl.load(x + places, mask=inside, other=0)
    if KIND == 0:
        tl.store(out + places // 2, value, mask=inside)
    elif KIND == 1:
        tl.store(x + places, value + 1, mask=inside)
        tl.store(out + places, tl.load(x + (places + 1) % length, mask=inside), mask=inside)
    elif KIND == 2:
        tl.store(out, program)
        tl.store(out + program, tl.load(out))
    elif KIND == 3:
        tl.store(out + places, tl.load(other + places, mask=inside) + value, mask=inside)
    elif KIND == 4:
        tl.store(x + length - 1 - places, value * 2, mask=inside)
    else:
        tl.store(out, 7)


def draw_shared(random: Random) -> Launch:
    length, block = number(random, 1, 16), pick(random, 1, 2, 4)
    room = integers(random, 0, 99, 48)
    x, out = room[:16], room[16:40]
    other = room[number(random, 0, 30) :][:16]
    if random.random() < 0.3:
        other = other.view(torch.int16)[1:17]
    return Launch(
        shared,
        (triton.cdiv(length, block),),
        (x, out, other, length),
        {"KIND": number(random, 0, 5), "BLOCK": block},
    )


@triton.jit
def tail(x, bounds, out, counter, KIND: tl.constexpr, WIDTH: tl.constexpr):
    """Ends with a loop of different lengths, in which programs branch, store and count."""
    row = tl.program_id(0)
    low = tl.load(bounds + row * 2)
    high = tl.load(bounds + row * 2 + 1)
    lane = tl.arange(0, WIDTH)
    for index in range(low, high):
        value = tl.load(x + index * WIDTH + lane)
        if KIND == 1:
            if tl.sum(value, 0) > 100:
                tl.store(out + row * 8 + index, tl.sum(value, 0))
        elif KIND == 2:
            tl.atomic_add(counter, index)
        elif KIND == 3:
            while tl.atomic_cas(counter, 0, 1) == 1:
                pass
            tl.store(out + row, tl.load(out + row) + index)
            tl.atomic_xchg(counter, 0)
        else:
            tl.store(out + row * 8 + index, tl.sum(value, 0) + tl.load(out + row * 8))


def draw_tail(random: Random) -> Launch:
    rows, width = number(random, 1, 6), pick(random, 2, 4)
    return Launch(
        tail,
        (rows,),
        (
            integers(random, 0, 99, 8, width),
            integers(random, 0, 7, rows, 2),
            integers(random, 0, 9, 64),
            torch.zeros(1, dtype=torch.int32),
        ),
        {"KIND": number(random, 0, 3), "WIDTH": width},
    )


DRAWS = {
    "tail": draw_tail,
    "counted": draw_counted,
    "added_floats": draw_added_floats,
    "tickets": draw_tickets,
    "shared": draw_shared,
}
