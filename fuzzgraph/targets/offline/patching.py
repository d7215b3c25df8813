"""Replaces names in the engine's modules, and puts them back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["replaced_names"]


@contextlib.contextmanager
def replaced_names(modules: Sequence[Any], names: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, each module that has one of the names holds the given value instead.

    A module that lacks a name is left alone: releases differ. Replace a name where it is looked up:
    after `from a import f`, module `b` has an `f` of its own.

    Args:
        modules: modules or classes.
        names: name -> what replaces it.
    """
    before = [(m, name, getattr(m, name)) for m in modules for name in names if hasattr(m, name)]
    for module, name, _ in before:
        setattr(module, name, names[name])
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
