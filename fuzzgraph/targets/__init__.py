"""Engines under test, by name: the built-in one, and those that outsiders register."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from fuzzgraph.errors import UsageError
from fuzzgraph.ports import Target

__all__ = ["BUILT_IN", "open_target", "target_names"]

GROUP = "fuzzgraph.targets"


def _builtin() -> Target:
    from fuzzgraph.targets.builtin import BuiltinTarget

    return BuiltinTarget()


def _builtin_triton() -> Target:
    from fuzzgraph.targets.builtin import BuiltinTarget

    return BuiltinTarget(name="builtin-triton", kernels="triton")


def _sglang_aiter() -> Target:
    from fuzzgraph.targets.sglang.aiter import AiterTarget

    return AiterTarget()


def _sglang_aiter_verify() -> Target:
    from fuzzgraph.targets.sglang.aiter import verify_target

    return verify_target()


def _sglang_buffers() -> Target:
    from fuzzgraph.targets.sglang.buffers import BufferTarget

    return BufferTarget()


def _sglang_buffers_verify() -> Target:
    from fuzzgraph.targets.sglang.buffers import verify_target

    return verify_target()


def _sglang_cpu_graph() -> Target:
    from fuzzgraph.targets.sglang.cpu_graph import CpuGraphTarget

    return CpuGraphTarget()


def _sglang_eagle_draft() -> Target:
    from fuzzgraph.targets.sglang.drafts import draft

    return draft()


def _sglang_eagle_draft_extend() -> Target:
    from fuzzgraph.targets.sglang.drafts import draft_extend

    return draft_extend()


def _sglang_frozen_kv_mtp() -> Target:
    from fuzzgraph.targets.sglang.drafts import frozen_kv_mtp

    return frozen_kv_mtp()


def _sglang_triton() -> Target:
    from fuzzgraph.targets.sglang.triton import TritonTarget

    return TritonTarget()


def _sglang_triton_verify() -> Target:
    from fuzzgraph.targets.sglang.triton import verify_target

    return verify_target()


def _sglang_dsv4() -> Target:
    from fuzzgraph.targets.sglang.dsv4 import Dsv4Target

    return Dsv4Target()


BUILT_IN: tuple[tuple[str, Callable[[], Target]], ...] = (
    ("builtin", _builtin),
    ("builtin-triton", _builtin_triton),
    ("sglang-aiter", _sglang_aiter),
    ("sglang-aiter-verify", _sglang_aiter_verify),
    ("sglang-buffers", _sglang_buffers),
    ("sglang-buffers-verify", _sglang_buffers_verify),
    ("sglang-cpu-graph", _sglang_cpu_graph),
    ("sglang-dsv4", _sglang_dsv4),
    ("sglang-eagle-draft", _sglang_eagle_draft),
    ("sglang-eagle-draft-extend", _sglang_eagle_draft_extend),
    ("sglang-frozen-kv-mtp", _sglang_frozen_kv_mtp),
    ("sglang-triton", _sglang_triton),
    ("sglang-triton-verify", _sglang_triton_verify),
)
"""Name and opener of the targets that come with FuzzGraph."""


def target_names() -> tuple[str, ...]:
    """Names that `open_target` knows, built-in ones first."""
    built_in = [name for name, _ in BUILT_IN]
    return (*built_in, *sorted({entry.name for entry in entry_points(group=GROUP)} - {*built_in}))


def open_target(name: str) -> Target:
    """The target called `name`.

    Raises:
        UsageError: no such target; the message lists those there are.
        AdapterUnavailable: its engine is not installed.
    """
    for known, opener in BUILT_IN:
        if known == name:
            return opener()
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            opened: Target = entry.load()()
            return opened
    raise UsageError(
        f"target {name!r} is unknown. Choose one of {', '.join(target_names())}, or register it"
        f" by an entry point of group {GROUP!r}."
    )
