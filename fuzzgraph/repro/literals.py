"""Tensor contents as Python text: short where they are regular, exact always.

Values are printed with `repr` and read back to the same bits; what is large and irregular is packed
with zlib and base64, to be unpacked by `unpacked(...)` of the script's head.
"""

from __future__ import annotations

import base64
import zlib

import torch

WIDTH = 96
WRITTEN_OUT = 64
"""Irregular values of a whole buffer that are still written out, in elements."""
PACK_ABOVE = 256
"""Irregular values that are still written out, in elements."""


def dtype_text(dtype: torch.dtype) -> str:
    return str(dtype)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a dtype that `tolist` reads exactly."""
    host = tensor.detach().cpu()
    if host.dtype.is_floating_point and host.dtype.itemsize < 4:
        return host.float()
    return host


def scalar_text(value: object) -> str:
    """A Python number as an expression, infinities and NaN included."""
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return f'float("{value}")'
        return repr(int(value)) + ".0" if value.is_integer() and abs(value) < 1e15 else repr(value)
    return repr(value)


def value_text(values: object) -> str:
    """Nested lists of numbers as text."""
    if isinstance(values, list):
        return f"[{', '.join(map(value_text, values))}]"
    return scalar_text(values)


def tensor_text(tensor: torch.Tensor) -> str:
    """An expression for a tensor of these values and this dtype."""
    plain = _plain(tensor)
    if not plain.numel():
        return f"torch.empty({tuple(plain.shape)}, dtype={tensor.dtype})"
    if plain.numel() > 2 and _one_value(plain):
        first = scalar_text(plain.reshape(-1)[0].item())
        return f"torch.full({tuple(plain.shape)}, {first}, dtype={tensor.dtype})"
    if plain.numel() > PACK_ABOVE:
        return _packed(tensor)
    default = torch.tensor(plain.tolist()).dtype == tensor.dtype
    return _listed(plain.tolist(), "" if default else f", dtype={tensor.dtype}")


def _listed(values: object, kind: str = "") -> str:
    """`torch.tensor([...])`, over several lines where it is long."""
    text = value_text(values)
    if len(text) + len(kind) <= 64 or not isinstance(values, list):
        return f"torch.tensor({text}{kind})"
    lines, line = [], ""
    for item in values:
        part = f"{value_text(item)}, "
        if len(line) + len(part) > WIDTH - 8:
            lines.append(line.rstrip())
            line = ""
        line += part
    lines.append(line.rstrip())
    body = "\n".join(f"    {each}" for each in lines)
    return f"torch.tensor([\n{body}\n]{kind})"


def _packed(tensor: torch.Tensor) -> str:
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    text = base64.b85encode(zlib.compress(raw, 9)).decode()
    lines = "\n".join(f"    {text[at : at + 90]!r}" for at in range(0, len(text), 90))
    return f"unpacked({tensor.dtype}, {tuple(tensor.shape)},\n{lines},\n)"


def _one_value(plain: torch.Tensor) -> bool:
    flat = plain.contiguous().reshape(-1)
    raw = flat.view(torch.uint8).view(len(flat), -1)
    return bool((raw == raw[0]).all())


def contents(name: str, tensor: torch.Tensor) -> tuple[str, list[str]]:
    """How a buffer got these values: (fill value as text, then statements that differ from it)."""
    plain = _plain(tensor)
    if not plain.numel():
        return "0", []
    flat = plain.reshape(-1)
    values, counts = torch.unique(flat, return_counts=True)
    common = values[counts.argmax()]
    fill = scalar_text(common.item())
    if common != common or len(values) == 1:  # NaN equals nothing
        return (fill, []) if _one_value(plain) else ("0", [_whole(name, tensor)])
    if flat.dim() and plain.dim() == 1 and len(flat) > 3 and _is_range(plain):
        first, last = int(flat[0]), int(flat[-1])
        return "0", [f"{name}[:] = torch.arange({first}, {last + 1})"]
    other = (plain != common).reshape(len(plain), -1).any(1) if plain.dim() else plain != common
    if int(other.sum()) * 2 > len(other) or int(other.sum()) > 64:
        return "0", [_whole(name, tensor)]
    return fill, assignments(name, tensor, other)


def _is_range(plain: torch.Tensor) -> bool:
    if plain.dtype.is_floating_point or plain.dtype is torch.bool:
        return False
    return bool((plain[1:] - plain[:-1] == 1).all())


def _whole(name: str, tensor: torch.Tensor) -> str:
    text = tensor_text(tensor) if tensor.numel() <= WRITTEN_OUT else _packed(tensor)
    return f"{name}[...] = {text}"


def assignments(name: str, tensor: torch.Tensor, rows: torch.Tensor) -> list[str]:
    """Statements that give the marked rows of a buffer their values; bool [len(tensor)]."""
    lines = []
    for start, stop in _runs(rows) if tensor.dim() > 1 else _equal_runs(rows, _plain(tensor)):
        part = tensor[start:stop]
        if stop - start == 1:
            lines.append(_row(f"{name}[{start}]", part[0]))
        else:
            lines.append(f"{name}[{start}:{stop}] = {_values(part)}")
    return lines


def _row(place: str, row: torch.Tensor) -> str:
    """One row; where only its beginning matters, that."""
    return f"{place} = {_values(row)}"


def _values(part: torch.Tensor) -> str:
    plain = _plain(part)
    if _one_value(plain.reshape(-1)):
        return scalar_text(plain.reshape(-1)[0].item())
    if plain.numel() > PACK_ABOVE:
        return tensor_text(part)
    return _listed(plain.tolist())


def _equal_runs(marked: torch.Tensor, plain: torch.Tensor) -> list[tuple[int, int]]:
    """Marked stretches, cut where a value repeats four times and more."""
    values = plain.tolist()
    found: list[tuple[int, int]] = []
    for start, stop in _runs(marked):
        at = start
        while at < stop:
            end = at
            while end < stop and values[end] == values[at]:
                end += 1
            end = max(end, at + 1)
            joins = found and found[-1][1] == at and end - at < 4 and at > start
            if (
                joins
                and len(set(values[found[-1][0] : found[-1][1]])) > 1
                or (joins and found[-1][1] - found[-1][0] < 4)
            ):
                found[-1] = (found[-1][0], end)
            else:
                found.append((at, end))
            at = end
    return found


def _runs(marked: torch.Tensor) -> list[tuple[int, int]]:
    """Stretches of marked rows, as (start, stop)."""
    runs: list[tuple[int, int]] = []
    for index in marked.nonzero().flatten().tolist():
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs
