"""What a function that an engine compiles takes, read from the C++ source that its release ships.

An engine that compiles kernels at run time ships their source. Where a model stands in for one, the
source says how many arguments the compiled function takes and of what kind: the binding (tvm_ffi)
has no names and no defaults, and refuses everything else. Understood is what such interfaces are
written in, a list of plain parameters; it is no parser of C++.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.errors import AdapterUnavailable, KernelRefused

__all__ = [
    "COMMENTS",
    "Parameter",
    "check_binding",
    "check_template",
    "number_of",
    "parameters_of",
    "template_of",
    "template_of_function",
]

COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
"""Of C++."""
_WORDS = re.compile(r"\b(const|inline|static|unsigned|typename|class)\b|[&]|__restrict__")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function or of a template."""

    name: str
    type: str
    """As the source spells it, without qualifiers; `typename` of a template is ``type``."""
    default: str = ""
    """Of a template's parameter; "" for none. Bindings of functions know no defaults."""

    def takes(self, value: Any) -> bool:
        """Whether the binding converts `value` into it (tvm_ffi/type_traits.h)."""
        if "Optional" in self.type and value is None:
            return True
        if "Tensor" in self.type:
            return isinstance(value, torch.Tensor)
        if self.type in _FLOATS:
            return isinstance(value, (float, int))
        if self.type in _INTEGERS:
            return isinstance(value, int)  # a bool as well
        return True


_FLOATS = frozenset(("float", "double"))
_HELD: Mapping[str, range] = {
    "bool": range(2),
    "int": range(-(2**31), 2**31),
    "long": range(-(2**63), 2**63),
    "size_t": range(2**64),
    **{f"int{n}_t": range(-(2 ** (n - 1)), 2 ** (n - 1)) for n in (8, 16, 32, 64)},
    **{f"uint{n}_t": range(2**n) for n in (8, 16, 32, 64)},
}
"""What whole numbers of each kind hold, where `long` has 64 bits."""
_INTEGERS = frozenset(_HELD)
_FLAGS = {"true": 1, "false": 0}


def parameters_of(source: str, function: str, within: str = "") -> tuple[Parameter, ...]:
    """The parameters of a function that is defined in `source`.

    Args:
        within: the struct whose method it is; "" for a function of its own.

    Raises:
        AdapterUnavailable: the source has no such function.
    """
    text = COMMENTS.sub("", source)
    start = _after(text, rf"\bstruct {within}\b[^;{{]*\{{") if within else 0
    found = None
    if start is not None:
        # Its definition: a list of parameters, then a body. A call ends otherwise.
        for each in re.finditer(rf"\b{function}\s*\(", text[start:]):
            listed, end = _between(text, start + each.end(), "(", ")")
            if re.match(r"\s*(const\s*|noexcept\s*)*\{", text[end:]):
                found = listed
                break
    if found is None:
        place = f"{within}::{function}" if within else function
        raise AdapterUnavailable(f"the source of a compiled kernel defines no {place}")
    return _parameters(found)


def template_of(source: str, struct: str) -> tuple[Parameter, ...]:
    """The parameters of a struct's template; empty if it is none.

    Raises:
        AdapterUnavailable: the source has no such struct.
    """
    text = COMMENTS.sub("", source)
    at = re.search(rf"\bstruct {struct}\b\s*(final\s*)?\{{", text)
    if at is None:
        raise AdapterUnavailable(f"the source of a compiled kernel defines no struct {struct}")
    return _template_before(text, at.start())


def template_of_function(source: str, function: str) -> tuple[Parameter, ...]:
    """The parameters of the template of a function that gives nothing back; empty if it is none."""
    text = COMMENTS.sub("", source)
    for at in re.finditer(rf"\bvoid\s+{function}\s*\(", text):
        return _template_before(text, at.start())
    return ()


def _template_before(text: str, end: int) -> tuple[Parameter, ...]:
    before = text[:end].rstrip()
    if not before.endswith(">"):
        return ()
    depth, start = 0, len(before)
    for start in range(len(before) - 1, -1, -1):
        depth += {">": 1, "<": -1}.get(before[start], 0)
        if not depth:
            break
    return _parameters(before[start + 1 : -1])


def check_binding(
    name: str, parameters: Sequence[Parameter], args: Sequence[Any], source: str
) -> None:
    """Refuse a call that the binding of a compiled function refuses.

    Raises:
        KernelRefused: an argument too few, too many or of another kind.
    """
    if len(args) != len(parameters):
        names = ", ".join(each.name for each in parameters)
        raise KernelRefused(
            f"{name} takes {len(parameters)} arguments ({names}); got {len(args)} ({source})"
        )
    for parameter, value in zip(parameters, args, strict=True):
        if not parameter.takes(value):
            raise KernelRefused(
                f"{name}: {parameter.name} must be {parameter.type}; got a {type(value).__name__}"
                f" ({source})"
            )


def check_template(
    name: str, parameters: Sequence[Parameter], args: Sequence[str], source: str
) -> None:
    """Refuse template arguments that a compiler refuses.

    Raises:
        KernelRefused: an argument too few, too many or of another kind.
    """
    needed = sum(not each.default for each in parameters)
    if not needed <= len(args) <= len(parameters):
        names = ", ".join(each.name for each in parameters)
        raise KernelRefused(
            f"{name} has {len(parameters)} template parameters ({names}); got {len(args)}: "
            f"{', '.join(args)} ({source})"
        )
    for parameter, value in zip(parameters, args, strict=False):  # the rest has defaults
        if not _fits_template(parameter.type, value):
            raise KernelRefused(
                f"{name}: template parameter {parameter.name} must be {parameter.type}; got "
                f"{value} ({source})"
            )


def number_of(value: str) -> int | None:
    """The whole number that an argument of a template is; None for a type or another name."""
    if re.fullmatch(r"-?\d+", value):
        return int(value)
    return _FLAGS.get(value)


def _fits_template(kind: str, value: str) -> bool:
    # A constant converts into another kind of number if that one holds it (no narrowing).
    number = number_of(value)
    if kind not in _INTEGERS or number is None:
        return (kind in _INTEGERS) == (number is not None)
    return number in _HELD[kind]


def _parameters(listed: str) -> tuple[Parameter, ...]:
    found = []
    for each in _at_commas(listed):
        # `typename T` of a template and `const int64_t n` alike: kind, then name.
        kind = "type" if re.match(r"\s*(typename|class)\b", each) else ""
        declared, _, default = each.partition("=")
        words = _WORDS.sub(" ", declared).split()
        if words:
            name = words[-1].strip("*")
            found.append(Parameter(name, kind or " ".join(words[:-1]), default.strip()))
    return tuple(found)


def _at_commas(text: str) -> list[str]:
    """Parts between the commas that lie in no brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(sign, 0)
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _after(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return None if found is None else found.end()


def _between(text: str, start: int, opening: str, closing: str) -> tuple[str, int]:
    """What lies between a bracket that opens before `start` and the one that closes it."""
    depth, at = 1, start
    while depth and at < len(text):
        depth += {opening: 1, closing: -1}.get(text[at], 0)
        at += 1
    return text[start : at - 1], at
