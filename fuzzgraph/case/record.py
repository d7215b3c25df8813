"""What all records of a case are: frozen, strict, and written without their defaults."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import force_setattr

if TYPE_CHECKING:
    from hypothesis.vendor.pretty import RepresentationPrinter


def one_empty_tuple(record: msgspec.Struct, *names: str) -> None:
    """Make every empty tuple the object `()`: msgspec omits a default if it is the same object.

    Python 3.10 makes others, and a case would have another digest once it was written and read.
    """
    for name in names:
        if not getattr(record, name):
            force_setattr(record, name, ())


@lru_cache(maxsize=8)
def _defaults(record: type[msgspec.Struct]) -> dict[str, Any]:
    """Field -> default; fields without one come first in a struct and are left out."""
    defaults = record.__struct_defaults__
    return dict(zip(record.__struct_fields__[-len(defaults) :], defaults, strict=True))


class Record(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Frozen, strict, and with its defaults left out wherever it is written.

    Its `repr` is an expression over the public names of `fuzzgraph`, so that the falsifying example
    that Hypothesis prints can be pasted into `@example(...)`.
    """

    def _shown(self) -> list[tuple[str, Any]]:
        """Fields that differ from their defaults; msgspec itself compares tuples by identity."""
        values = [(name, getattr(self, name)) for name in self.__struct_fields__]
        defaults = _defaults(type(self))
        return [(name, value) for name, value in values if defaults.get(name, ...) != value]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._shown())
        return f"{type(self).__name__}({shown})"

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        """Hypothesis' and IPython's hook: the `repr`, one field to a line where it is long."""
        with printer.group(4, f"{type(self).__name__}(", ""):
            for index, (name, value) in enumerate(self._shown()):
                printer.text("," * (index > 0))
                printer.breakable(" " if index else "")
                printer.text(f"{name}=")
                printer.pretty(value)
        printer.text(")")
