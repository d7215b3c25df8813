"""The few functions every script starts with, as text; those that a script calls are printed."""

from __future__ import annotations

import re

__all__ = ["prelude"]

_HELPERS: dict[str, str] = {
    "unpacked": '''
def unpacked(dtype, shape, *parts):
    """Content too long to write out: base85 of zlib."""
    raw = bytearray(zlib.decompress(base64.b85decode("".join(parts))))
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).view(shape)
''',
    "region": '''
def region(offset, shape, dtype, zones, fill=0, stride=None):
    """A buffer where the engine allocated it, between red zones of so many bytes."""
    size = dtype.itemsize
    stride = stride or torch.empty(shape, device="meta").stride()
    flat = MEMORY.view(dtype)
    buffer = flat.as_strided(shape, stride, offset // size)
    payload = (sum((n - 1) * s for n, s in zip(shape, stride)) + 1) if 0 not in shape else 0
    start, end = offset - zones[0], offset + payload * size + zones[1]
    first = offset // size
    ZONES[buffer.data_ptr()] = (start // size, first, first + payload, end // size)
    poison_zones(buffer, 0)
    if payload:
        buffer.copy_(torch.full(shape, fill, dtype=wide(dtype)))
    return buffer
''',
    "wide": '''
def wide(dtype):
    """A dtype that `torch.full` fills, for 8-bit floats."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize == 1 else dtype
''',
    "poison": '''
def poison(buffer):
    """What a buffer without content of its own holds: a trap number, or a finite signature."""
    if buffer.numel():
        value = POISON[buffer.dtype][world]
        buffer.copy_(torch.full(buffer.shape, value, dtype=wide(buffer.dtype)))
''',
    "poison_zones": '''
def poison_zones(buffer, which):
    """Write the red zones of a buffer as world `which` has them."""
    flat = MEMORY.view(buffer.dtype)
    start, first, stop, end = ZONES[buffer.data_ptr()]
    for part in (flat[start:first], flat[stop:end]):
        part.copy_(torch.full(part.shape, POISON[buffer.dtype][which], dtype=wide(buffer.dtype)))
''',
    "save": '''
def save():
    """A copy of all that the engine allocated."""
    return [MEMORY[start:end].clone() for start, end in SPANS]
''',
    "restore": '''
def restore(saved):
    """Put memory back to what it was."""
    for (start, end), part in zip(SPANS, saved):
        MEMORY[start:end] = part
''',
    "overruns": '''
def overruns(name, buffer):
    """What was written before the first or behind the last element of a buffer."""
    flat = MEMORY.view(buffer.dtype)
    start, first, stop, end = ZONES[buffer.data_ptr()]
    clean = torch.full((1,), POISON[buffer.dtype][0], dtype=wide(buffer.dtype)).to(buffer.dtype)
    clean = bits(clean)
    for side, low, high, origin in (("before", start, first, first), ("behind", stop, end, stop)):
        hit = (bits(flat[low:high]) != clean).nonzero().flatten().tolist()
        if hit:
            far = (hit[0] if side == "before" else hit[-1]) + low - origin
            found = flat[low:high][hit[:4]].tolist()
            yield (
                f"{counted(len(hit))} written {side} {name} ({counted(stop - first)}),"
                f" as far as {far:+d}; found {found}"
            )
''',
    "bits": '''
def bits(tensor):
    """The same bytes as integers, so that NaN and -0.0 compare as they are."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])
''',
    "counted": '''
def counted(number):
    """A number of elements."""
    return f"{number} element{'s' * (number != 1)}"
''',
    "differences": '''
def differences(name, got, want, other):
    """Where two results part, bit for bit."""
    if got.shape != want.shape:
        yield f"{name} has shape {tuple(got.shape)}, {tuple(want.shape)} {other}"
        return
    unequal = (bits(got) != bits(want)).nonzero()
    if len(unequal):
        place = tuple(unequal[0].tolist())
        yield (
            f"{name}{list(place)} is {got[place].item()}, {want[place].item()} {other}"
            f" ({counted(len(unequal))} differ)"
        )
''',
    "errors": '''
def errors(name, got, want, tolerance):
    """Where a result is farther from the truth than plain torch in the same dtype would be."""
    if got.shape != want.shape:
        yield f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
        return
    wrong = (~((got.double() - want).abs() <= tolerance)).nonzero()
    if len(wrong):
        place = tuple(wrong[0].tolist())
        yield (
            f"{name}{list(place)} is {got[place].item():g}, expected {want[place].item():g}"
            f" within {tolerance:.3g} ({counted(len(wrong))} differ)"
        )
''',
    "changed": '''
def changed(name, buffer, before, own):
    """Rows of a buffer that changed although the batch does not own them."""
    rows = (bits(buffer) != bits(before)).reshape(len(buffer), -1).any(1).nonzero().flatten()
    foreign = [row for row in rows.tolist() if row not in own]
    if foreign:
        yield f"rows {foreign[:8]} of {name} changed; the batch owns {sorted(own)} only"
''',
    "report": '''
def report(lines):
    """Print what was found; the exit code."""
    lines = list(lines)
    if not lines:
        print("The finding does not show: the law holds here.")
        return 0
    print(HEADLINE)
    for line in lines:
        print(f"  {line}")
    return 1
''',
}
_ORDER = (
    "wide", "bits", "unpacked", "save", "restore", "poison_zones", "poison", "region",
    "overruns", "counted", "differences", "errors", "changed", "report",
)  # fmt: skip


def prelude(body: str) -> str:
    """Source of every helper that `body` calls, directly or not."""
    wanted: set[str] = set()
    text = body
    while True:
        found = {name for name in _ORDER if re.search(rf"\b{name}\(", text)}
        if found <= wanted:
            break
        wanted |= found
        text = "\n".join([body, *(_HELPERS[name].partition("\n")[2] for name in wanted)])
        text = re.sub(r"^def \w+\(", "def (", text, flags=re.M)
    return "\n".join(_HELPERS[name] for name in _ORDER if name in wanted)
