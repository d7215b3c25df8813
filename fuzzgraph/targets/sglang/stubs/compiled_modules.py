"""Models in place of what the engine compiles when it first calls it.

The engine's own wrappers run, and its choice of what to compile: `load_jit` alone gives way. What
it would build is refused where a compiler would, and a call of it where its binding would, by the
source that the release ships.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from fuzzgraph.errors import AdapterUnavailable, KernelNotModelled, KernelRefused
from fuzzgraph.relays import relay
from fuzzgraph.targets.offline.cxx_platforms import lacks_method, on_platform
from fuzzgraph.targets.offline.cxx_signatures import (
    check_binding,
    check_template,
    number_of,
    parameters_of,
    template_of,
    template_of_function,
)
from fuzzgraph.targets.offline.kernel_arguments import checks_kinds
from fuzzgraph.targets.sglang.release import package_root

__all__ = ["Compiled", "Makers", "compile_to_models", "source_of"]

_FOLDERS = ("kernels/jit/csrc", "jit_kernel/csrc")
"""Where releases have the sources of what they compile, the newest first."""
_DTYPES = {
    "fp32_t": torch.float32,
    "fp16_t": torch.float16,
    "bf16_t": torch.bfloat16,
    "fp8_e4m3_t": torch.float8_e4m3fn,
    "uint8_t": torch.uint8,
    "int8_t": torch.int8,
    "int32_t": torch.int32,
    "int64_t": torch.int64,
}
"""As the engine's `make_cpp_args` renders them."""
_PLATFORM = {"USE_ROCM": torch.version.hip is not None}
"""What the engine's compiler is told of the platform (sglang kernels/jit/utils)."""
_EXPRESSION = re.compile(
    r"((?P<space>\w+)::(?=\w+\s*<))?(?P<kernel>\w+)\s*(<(?P<args>.*)>)?\s*(::(?P<method>\w+))?"
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """One function of what the engine compiles, as the release's source has it."""

    template: Mapping[str, str]
    """Parameters of the template -> arguments, as the engine renders them."""
    parameters: tuple[str, ...]
    """What the function takes, in this order."""

    def number(self, *names: str) -> int:
        """A number of the template, under whichever of its names the release has; a flag is 0 or 1.

        Raises:
            AdapterUnavailable: it has none of them, or it is no number.
        """
        rendered = self._argument(names)
        found = number_of(rendered)
        if found is None:
            raise AdapterUnavailable(
                f"{names[0]} of this release's kernel is no number: {rendered}"
            )
        return found

    def dtype(self, *names: str) -> torch.dtype:
        """A type of the template, likewise.

        Raises:
            AdapterUnavailable: it has none of these parameters.
            KernelRefused: it is none that a kernel is built for.
        """
        rendered = self._argument(names)
        if rendered not in _DTYPES:
            raise KernelRefused(f"{names[0]} must be one of {', '.join(_DTYPES)}; got {rendered}")
        return _DTYPES[rendered]

    def _argument(self, names: Sequence[str]) -> str:
        for name in names:
            if name in self.template:
                return self.template[name]
        raise AdapterUnavailable(
            f"this release's kernel has no template parameter {' or '.join(names)}; it has "
            f"{', '.join(self.template)}"
        )

    def by_name(self, args: Sequence[Any]) -> dict[str, Any]:
        """The arguments of a call by the names of the source."""
        return dict(zip(self.parameters, args, strict=True))


Makers = Mapping[str, Callable[[Compiled], Callable[..., Any]]]
"""As the engine's source spells a function, ``Struct::method`` or ``function`` -> what makes the
model of it; the model takes the arguments of the compiled function by position."""


def compile_to_models(module: Any, makers: Makers) -> None:
    """From now on, what a module of the engine compiles are models; for the life of the process.

    Args:
        module: one of the engine's that calls `load_jit`.
        makers: of what it calls; the rest says that it has no model when it is called.
    """
    real = inspect.unwrap(module.load_jit)
    takes = inspect.signature(real)

    @functools.wraps(real)
    @relay
    def load_jit(*args: Any, **kwargs: Any) -> Any:
        try:
            given = takes.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise KernelRefused(f"load_jit: {error} (signature of the engine's own)") from error
        source = given["cuda_files"][0]
        text = "\n".join(map(source_of, given["cuda_files"]))
        exports = {
            name: _export(name, expression, text, source, makers)
            for name, expression in given["cuda_wrappers"]
        }
        return SimpleNamespace(**exports)

    module.load_jit = load_jit
    # Whether kernels may start before their predecessors end, as on the GPU of `cuda_on_cpu`.
    module.is_arch_support_pdl = lambda: True


def _export(
    name: str, expression: str, text: str, source: str, makers: Makers
) -> Callable[..., Any]:
    found = _EXPRESSION.fullmatch(expression.strip())
    if found is None:
        raise KernelRefused(f"{expression} names no function ({source})")
    kernel, method = found["kernel"], found["method"]
    spelt = f"{kernel}::{method}" if method else kernel
    if method and lacks_method(on_platform(text, _PLATFORM), kernel, method):
        raise KernelRefused(f"{kernel} has no {method} on this platform ({source})")
    if spelt not in makers:
        return _not_modelled(spelt)
    declared = template_of(text, kernel) if method else template_of_function(text, kernel)
    args = [each.strip() for each in found["args"].split(",")] if found["args"] else []
    template: dict[str, str] = {}
    if method or declared:
        check_template(kernel, declared, args, source)
        rest = [each.default for each in declared[len(args) :]]
        template = {each.name: value for each, value in zip(declared, args + rest, strict=True)}
    takes = parameters_of(text, method or kernel, kernel if method else "")
    made = makers[spelt](Compiled(template, tuple(each.name for each in takes)))
    model = checks_kinds(made, name)

    @relay
    def compiled(*args: Any) -> Any:
        check_binding(name, takes, args, source)
        return model(*args)

    return compiled


def _not_modelled(spelt: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise KernelNotModelled(f"{spelt} is compiled by the engine and has no model")

    return refuse


@functools.cache
def source_of(file: str) -> str:
    """The text of a source that the release ships.

    Raises:
        AdapterUnavailable: it ships none.
    """
    for folder in _FOLDERS:
        path = package_root() / folder / file
        if path.is_file():
            return path.read_text()
    raise AdapterUnavailable(
        f"this release does not ship {file}, by which its compiled kernels are checked"
    )
