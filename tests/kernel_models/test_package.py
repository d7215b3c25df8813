"""Rules that every module of kernel models keeps."""

from __future__ import annotations

import ast
from importlib import import_module
from pkgutil import walk_packages

from fuzzgraph import kernel_models
from fuzzgraph.kernel_models.launch import ModelKernel
from fuzzgraph.repro.embedding import EMBEDDABLE, Embedded

KERNELS = [
    value
    for each in walk_packages(kernel_models.__path__, f"{kernel_models.__name__}.")
    for value in vars(import_module(each.name)).values()
    if isinstance(value, ModelKernel)
]


def test_no_two_functions_that_scripts_contain_have_the_same_name() -> None:
    sources: dict[str, set[str]] = {}
    for name in EMBEDDABLE:
        for node in ast.parse(Embedded([name]).text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                sources.setdefault(node.name, set()).add(ast.unparse(node))
    assert [name for name, texts in sources.items() if len(texts) > 1] == []


def test_the_body_of_every_kernel_can_be_embedded_in_a_script() -> None:
    assert KERNELS
    for kernel in KERNELS:
        name = kernel.fn.__name__
        assert vars(EMBEDDABLE[name])[name] is kernel.fn
