"""Rules that every module of kernel models keeps."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from importlib import import_module
from pkgutil import walk_packages

from fuzzgraph import kernel_models
from fuzzgraph.kernel_models.launch import ModelKernel
from fuzzgraph.repro.embedding import EMBEDDABLE, EMBEDDED_MODULES

MODULES = [
    import_module(each.name)
    for each in walk_packages(kernel_models.__path__, f"{kernel_models.__name__}.")
]


def _defined(module: object) -> list[str]:
    names = []
    for node in ast.parse(inspect.getsource(module)).body:  # type: ignore[arg-type]
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
    return names


def test_no_function_has_the_name_of_another_because_a_script_embeds_them_side_by_side() -> None:
    counts = Counter(name for module in EMBEDDED_MODULES for name in _defined(module))
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_body_of_every_kernel_can_be_embedded_in_a_script() -> None:
    kernels = [
        value for module in MODULES for value in vars(module).values()
        if isinstance(value, ModelKernel)
    ]  # fmt: skip
    assert kernels
    for kernel in kernels:
        name = kernel.fn.__name__
        assert vars(EMBEDDABLE[name])[name] is kernel.fn
