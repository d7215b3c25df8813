"""Kernels that are written at random, and the memory they run on.

A kernel takes tensors of all types, computes on blocks and scalars, and goes out of bounds, reads
what nobody wrote, meets other programs, takes branches, loops and raises as it is drawn.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

BLOCK = 8
WIDE = 4
PROGRAMS = 4
_TENSORS = {
    "floats": torch.float32, "halves": torch.float16, "brains": torch.bfloat16,
    "ints": torch.int32, "longs": torch.int64, "bytes": torch.int8,
}  # fmt: skip
_TYPES = {
    "floats": "float32", "halves": "float16", "brains": "bfloat16",
    "ints": "int32", "longs": "int64", "bytes": "int8",
}  # fmt: skip
_ARGUMENTS = ", ".join(
    [*(f"{way}_{name}" for name in _TENSORS for way in ("from", "to")), "gaps", "fresh", "counts"]
)
_HEAD = f"""
import triton
import triton.language as tl


@triton.jit
def kernel({_ARGUMENTS}, number, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    place = program * BLOCK + lane
    column = tl.arange(0, WIDE)
"""


def source(seed: int) -> str:
    """The file of one kernel."""
    return _Kernel(Random(seed)).text()


def kernel(seed: int, folder: Path) -> Any:
    """The kernel, from a file in this folder."""
    path = folder / f"generated_{seed}.py"
    path.write_text(source(seed))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


class _Kernel:
    """Writes one kernel: a line of code makes a variable, which later lines take."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._lines: list[str] = []
        self._depth = 1
        self._count = 0
        self._blocks: dict[str, list[str]] = {name: [] for name in (*_TYPES, "truths")}
        """Kind -> variables of shape [BLOCK]."""
        self._tables: dict[str, list[str]] = {"floats": [], "ints": []}
        """The same of shape [BLOCK, WIDE]."""
        self._scalars: dict[str, list[str]] = {"floats": [], "ints": ["program", "number"]}
        self._blocks["ints"] += ["place", "lane"]

    def text(self) -> str:
        for name in _TYPES:
            self._load(name)
        for _ in range(self._random.randint(8, 24)):
            self._statement()
        for name in _TYPES:
            self._store(name)
        return _HEAD + "\n".join(self._lines) + "\n"

    def _statement(self) -> None:
        kinds = [
            self._load, self._binary, self._binary, self._compared, self._chosen, self._cast,
            self._integer, self._reduced, self._table, self._table_reduced, self._store,
            self._scalar, self._atomic, self._fresh, self._gap,
        ]  # fmt: skip
        if self._depth < 3:
            kinds += [self._branch, self._loop, self._raise]
        self._pick(kinds)()

    # ---- drawing

    def _pick(self, choices: Any) -> Any:
        return self._random.choice(choices)

    def _add(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _new(self, known: list[str], expression: str) -> None:
        self._count += 1
        self._add(f"v{self._count} = {expression}")
        known.append(f"v{self._count}")

    def _index(self) -> str:
        """Where a block of accesses goes: mostly inside."""
        scalar, some = self._pick(self._scalars["ints"]), self._pick(self._blocks["ints"])
        found = self._pick([
            "place", "place", "place", "lane", "(place % 5)", "(BLOCK - 1 - lane)",
            f"({some} % 16)", f"(lane + {scalar} % 8)", "(place * 2 - 3)", "(place + 20)",
            "(place + number * 99)",
        ])  # fmt: skip
        return str(found) if self._random.random() < 0.8 else f"{found}.to(tl.int64)"

    def _mask(self) -> str:
        truths = self._blocks["truths"]
        choices = ["", ", mask=place < number", ", mask=lane > 2"]
        choices += [f", mask={self._pick(truths)}"] * 2 if truths else []
        return str(self._pick(choices))

    # ---- lines

    def _load(self, name: str = "") -> None:
        name = name or self._pick(list(_TYPES))
        mask = self._mask()
        if mask and self._random.random() < 0.5:
            other = self._pick(["0", "-1" if name != "bytes" else "3"])
            mask += f", other={other}"
        self._new(self._blocks[name], f"tl.load(from_{name} + {self._index()}{mask})")

    def _store(self, name: str = "") -> None:
        name = name or self._pick(list(_TYPES))
        value = self._pick(self._blocks[name])
        self._add(f"tl.store(to_{name} + {self._index()}, {value}{self._mask()})")

    def _binary(self) -> None:
        name = self._pick(["floats", "floats", "halves", "ints", "longs"])
        one, two = self._pick(self._blocks[name]), self._pick(self._blocks[name])
        if self._random.random() < 0.3 and name in self._scalars and self._scalars[name]:
            two = self._pick(self._scalars[name])
        form = self._pick(["{} + {}", "{} - {}", "{} * {}", "tl.maximum({}, {})", "({} + 1) * {}"])
        self._new(self._blocks[name], form.format(one, two))

    def _integer(self) -> None:
        one, two = self._pick(self._blocks["ints"]), self._pick(self._blocks["ints"])
        form = self._pick(["{} // 3", "{} % 7", "{} & {}", "{} | {}", "{} ^ {}", "{} >> 2", "-{}"])
        self._new(self._blocks["ints"], form.format(one, two))

    def _compared(self) -> None:
        name = self._pick(["floats", "ints", "longs", "halves"])
        one, two = self._pick(self._blocks[name]), self._pick(self._blocks[name])
        truths = self._blocks["truths"]
        self._new(truths, f"{one} {self._pick(['<', '>=', '==', '!='])} {two}")
        if len(truths) > 1:
            self._new(truths, f"{truths[-1]} {self._pick('&|^')} {self._pick(truths)}")

    def _chosen(self) -> None:
        if not self._blocks["truths"]:
            return self._compared()
        name = self._pick(list(_TYPES))
        one, two = self._pick(self._blocks[name]), self._pick(self._blocks[name])
        self._new(
            self._blocks[name], f"tl.where({self._pick(self._blocks['truths'])}, {one}, {two})"
        )

    def _cast(self) -> None:
        name, kind = self._pick(list(_TYPES)), self._pick(list(_TYPES))
        value = self._pick(self._blocks[name])
        self._new(self._blocks[kind], f"{value}.to(tl.{_TYPES[kind]})")
        if self._random.random() < 0.3:
            value = self._pick(self._blocks["floats"])
            self._new(self._blocks["ints"], f"{value}.to(tl.int32, bitcast=True)")

    def _reduced(self) -> None:
        name = self._pick(["floats", "ints"])
        value = self._pick(self._blocks[name])
        self._new(self._scalars[name], f"tl.{self._pick(['sum', 'max', 'min'])}({value}, axis=0)")

    def _table(self) -> None:
        name = self._pick(["floats", "ints"])
        one = self._pick(self._blocks[name])
        where = f"from_{name} + {self._index()}[:, None] + column[None, :]"
        form = self._pick([
            f"tl.load({where})",
            f"tl.load({where}, mask=(place < number)[:, None], other=1)",
            f"tl.load({where}, mask=(lane > 1)[:, None] & (column < 3)[None, :])",
            f"{one}[:, None] + column[None, :]",
        ])  # fmt: skip
        if name == "floats" and form.startswith(one):
            self._new(self._tables[name], f"{one}[:, None] * column[None, :].to(tl.float32)")
            return
        self._new(self._tables[name], form)

    def _table_reduced(self) -> None:
        name = self._pick(["floats", "ints"])
        if not self._tables[name]:
            return self._table()
        table, block = self._pick(self._tables[name]), self._pick(self._blocks[name])
        if self._random.random() < 0.5:
            self._new(self._tables[name], f"{table} + {block}[:, None]")
        form = self._pick([
            "tl.sum({}, axis=1)", "tl.max({}, axis=1)", "tl.min({}, axis=-1)",
            "tl.max(tl.sum({}, axis=1, keep_dims=True), axis=1)",
        ])  # fmt: skip
        self._new(self._blocks[name], form.format(self._pick(self._tables[name])))

    def _scalar(self) -> None:
        name = self._pick(["floats", "ints"])
        form = self._pick(["program", "program * 3 + 1", "number - program"])
        mask = self._pick(["", "", ", mask=program < 2", ", mask=program > 0, other=2"])
        self._new(self._scalars[name], f"tl.load(from_{name} + {form}{mask})")

    def _atomic(self) -> None:
        value, index = self._pick(self._blocks["ints"]), self._index()
        form = self._pick(["add", "max", "xor"])
        call = f"tl.atomic_{form}(counts + {index}, {value}{self._mask()})"
        if self._random.random() < 0.2:
            self._new(self._blocks["ints"], call)
        else:
            self._add(call)

    def _fresh(self) -> None:
        value = self._pick(self._blocks["floats"])
        if self._random.random() < 0.6:
            self._add(f"tl.store(fresh + {self._index()}, {value}{self._mask()})")
        self._new(self._blocks["floats"], f"tl.load(fresh + {self._index()}{self._mask()})")

    def _gap(self) -> None:
        factor = self._pick([5, 5, 4])
        index = f"(lane % 4)[:, None] * {factor} + column[None, :]"
        self._new(self._tables["floats"], f"tl.load(gaps + {index}, mask=(column < 3)[None, :])")

    def _branch(self) -> None:
        name = self._pick(["floats", "ints"])
        if not self._scalars[name]:
            return self._scalar()
        self._add(f"if {self._pick(self._scalars[name])} > {self._pick([0, 2, 3])}:")
        self._body()
        if self._random.random() < 0.5:
            self._add("else:")
            self._body()

    def _loop(self) -> None:
        bound = self._pick(["number", "program", "program + 1", "3"])
        if self._random.random() < 0.4:
            self._new(self._scalars["ints"], "tl.load(from_ints + program)")
            bound = f"{self._scalars['ints'][-1]} % 4"
        self._add(f"for turn in range(0, {bound}, {self._pick([1, 2])}):")
        self._body(["turn"])

    def _body(self, scalars: list[str] | None = None) -> None:
        """Lines whose variables end with the block, but for one that was there before."""
        before = [
            {kind: list(names) for kind, names in known.items()}
            for known in (self._blocks, self._tables, self._scalars)
        ]
        self._depth += 1
        self._scalars["ints"] += scalars or []
        for _ in range(self._random.randint(1, 4)):
            self._statement()
        name = self._pick(["floats", "ints", "longs"])
        kept = [each for each in before[0][name] if each.startswith("v")]
        if kept:
            self._add(f"{self._pick(kept)} += {self._pick(self._blocks[name])}")
        self._depth -= 1
        self._blocks, self._tables, self._scalars = before

    def _raise(self) -> None:
        if self._random.random() < 0.3:
            self._add(f"if {self._pick(self._scalars['ints'])} == 3:")
            self._add('    raise ValueError("it is three")')


@dataclass
class Memory:
    """The tensors of a launch, in memory whose surroundings are known to the last byte."""

    args: tuple[Any, ...]
    fresh: torch.Tensor
    whole: np.ndarray[Any, Any]

    @property
    def start(self) -> int:
        """The address of the first byte."""
        return int(self.whole.ctypes.data)


def memory(seed: int) -> Memory:
    """Tensors with content, NaN and large numbers among it; the same for the same seed."""
    random = np.random.default_rng(seed)
    # An index that goes astray stays in here: no other memory of the process is in its reach.
    whole = random.integers(0, 256, 1 << 18, dtype=np.uint8)
    parts = torch.from_numpy(whole[1 << 16 : (1 << 16) + 8192])
    fresh = torch.from_numpy(whole[3 << 16 : (3 << 16) + 2048]).view(torch.float32)
    args: list[Any] = []
    at = 256
    for dtype in _TENSORS.values():
        for _ in range(2):
            count = PROGRAMS * BLOCK + int(random.integers(0, 24))
            tensor = parts[at : at + count * dtype.itemsize].view(dtype)
            at += 320
            args.append(_filled(tensor, random))
    gaps = parts[at : at + 80].view(torch.float32).view(4, 5)[:, :3]
    counts = parts[at + 128 : at + 256].view(torch.int32)
    number = int(random.integers(0, PROGRAMS * BLOCK + 1))
    return Memory((*args, gaps, fresh[64:128], counts, number), fresh, whole)


def _filled(tensor: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    count = len(tensor)
    if tensor.is_floating_point():
        values = torch.from_numpy(random.normal(size=count) * 4)
        strange = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-42, 70000.0])
        at = torch.from_numpy(random.integers(0, 40, count))
        tensor.copy_(torch.where(at < 6, strange[at % 6], values))
    else:
        values = torch.from_numpy(random.integers(-2, 12, count))
        large = torch.from_numpy(random.integers(-(1 << 31), 1 << 31, count))
        at = torch.from_numpy(random.integers(0, 12, count))
        tensor.copy_(torch.where(at == 0, large, values))
    return tensor
