"""Engines under test, by name: the built-in one, and those that outsiders register."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from fuzzgraph.case import Mode
from fuzzgraph.errors import UsageError
from fuzzgraph.targets.own import is_own, open_own

if TYPE_CHECKING:
    from fuzzgraph.ports import Target  # needs torch, the names of targets do not

__all__ = ["BUILT_IN", "open_target", "target_names"]

GROUP = "fuzzgraph.targets"


def _builtin_triton() -> Target:
    from fuzzgraph.targets.builtin import BuiltinTarget

    return BuiltinTarget(name="builtin-triton", kernels="triton")


def _from(module: str, factory: str) -> Callable[[], Target]:
    """Opens a target whose module is imported only then."""

    def opener() -> Target:
        opened: Target = getattr(import_module(f"fuzzgraph.targets.{module}"), factory)()
        return opened

    return opener


def _metadata(name: str, mode: Mode) -> Callable[[], Target]:
    """A backend of sglang without its kernels."""

    def opener() -> Target:
        from fuzzgraph.targets.sglang.backends.metadata_only import metadata_target

        return metadata_target(name.replace("-", "_"), mode)

    return opener


_VERIFYING = ("fa3", "flashinfer", "flashinfer-mla", "flashmla", "nsa", "trtllm-mha", "trtllm-mla")
"""Backends of sglang that verify drafts under graphs."""

BUILT_IN: tuple[tuple[str, Callable[[], Target]], ...] = (
    ("builtin", _from("builtin", "BuiltinTarget")),
    ("builtin-triton", _builtin_triton),
    ("sglang-aiter", _from("sglang.backends.aiter", "AiterTarget")),
    ("sglang-aiter-verify", _from("sglang.backends.aiter", "verify_target")),
    ("sglang-breakable-prefill", _from("sglang.runners.prefill", "breakable")),
    ("sglang-buffers", _from("sglang.runners.decode_input_buffers", "BufferTarget")),
    ("sglang-buffers-verify", _from("sglang.runners.decode_input_buffers", "verify_target")),
    ("sglang-cpu-graph", _from("sglang.runners.cpu_graph_runner", "CpuGraphTarget")),
    ("sglang-dsv4", _from("sglang.backends.dsv4", "Dsv4Target")),
    ("sglang-eagle-draft", _from("sglang.runners.eagle_draft", "draft")),
    ("sglang-eagle-draft-extend", _from("sglang.runners.eagle_draft", "draft_extend")),
    ("sglang-flashinfer-draft", _from("sglang.backends.flashinfer_draft", "StepsTarget")),
    ("sglang-frozen-kv-mtp", _from("sglang.runners.eagle_draft", "frozen_kv_mtp")),
    ("sglang-multi-layer-draft-extend", _from("sglang.runners.eagle_draft", "multi_layer")),
    *((f"sglang-{name}", _metadata(name, "decode")) for name in ("cutlass-mla", *_VERIFYING)),
    *((f"sglang-{name}-verify", _metadata(name, "target_verify")) for name in _VERIFYING),
    ("sglang-piecewise-prefill", _from("sglang.runners.prefill", "piecewise")),
    ("sglang-triton", _from("sglang.backends.triton", "TritonTarget")),
    ("sglang-triton-verify", _from("sglang.backends.triton", "verify_target")),
)
"""Name and opener of the targets that come with FuzzGraph."""


def target_names() -> tuple[str, ...]:
    """Names that `open_target` knows, built-in ones first."""
    built_in = [name for name, _ in BUILT_IN]
    return (*built_in, *sorted({entry.name for entry in entry_points(group=GROUP)} - {*built_in}))


def open_target(name: str) -> Target:
    """The target called `name`, or the one that module:factory makes.

    Raises:
        UsageError: no such target; the message lists those there are.
        AdapterUnavailable: its engine is not installed.
    """
    if is_own(name):
        return open_own(name)
    for known, opener in BUILT_IN:
        if known == name:
            return opener()
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            opened: Target = entry.load()()
            return opened
    raise UsageError(
        f"target {name!r} is unknown.{_resembling(name)} `fuzzgraph targets` lists all of them; "
        f"one of your own is registered by an entry point of group {GROUP!r}."
    )


def _resembling(name: str) -> str:
    """The known names that the caller may have meant."""
    close = get_close_matches(name, target_names(), n=3)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
