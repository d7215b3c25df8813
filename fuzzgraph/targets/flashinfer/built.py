"""What a module of FlashInfer was built for: dtypes, dims and flags, and what its functions take.

The release's own code says all of it where it generates a module's source. Kernels are compiled
for these, and read whatever they are handed as if it were so.

Source: FlashInfer 0.6.3 to 0.7.4, jit/attention/modules.py gen_customize_batch_prefill_module,
gen_customize_batch_decode_module and gen_batch_mla_module; jit/attention/utils.py
generate_additional_params: tensors that the variant adds, then its numbers, by position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.flashinfer.typed_call import Kind, Parameter

__all__ = ["SOURCE", "Built", "added"]

SOURCE = "FlashInfer 0.7.4, jit/attention/modules.py and csrc"

_NO_POSITIONS = 0
_POSITIONS = (0, 1, 2)
"""Codes of flashinfer/utils.py PosEncodingMode."""
_TYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "uint8_t": (torch.uint8, torch.bool),
    "int32_t": (torch.int32,),
    "uint32_t": (torch.uint32, torch.int32),
    "uint16_t": (torch.uint16, torch.int16),
    "float": (torch.float32,),
}
"""Type of a parameter in C++ -> dtypes that it reads rightly."""
_KINDS: Mapping[str, Kind] = {"double": "float", "float": "float", "int64_t": "int"}


@dataclass(frozen=True, slots=True)
class Built:
    """A module's constants."""

    call: Call
    q: torch.dtype
    kv: torch.dtype
    out: torch.dtype
    index: torch.dtype
    head_dim_qk: int
    head_dim_vo: int
    added: tuple[Parameter, ...] = ()
    """What functions take behind what all modules of the kind take."""
    types: Mapping[str, str] | None = None
    """Name of an added tensor -> what the kernel takes it for."""
    windowed: bool = False
    capped: bool = False
    independent: bool = False
    """Whether keys and values may have different strides."""

    def __post_init__(self) -> None:
        for name in ("q", "kv", "out", "index"):
            given = getattr(self, name)
            rule = f"a module's dtype_{name} must be a dtype"
            self.call.needs(isinstance(given, torch.dtype), rule, given)
        for name in ("head_dim_qk", "head_dim_vo"):
            given = getattr(self, name)
            fits = isinstance(given, int) and given > 0
            self.call.needs(fits, f"a module's {name} must be a positive number", given)

    def needs_no_positions(self, mode: int) -> None:
        """Refuse a mode that does not exist; the models turn no queries and keys.

        Raises:
            KernelRefused: no such mode; its source would not compile.
            KernelNotModelled: one with positions.
        """
        rule = "a module's pos_encoding_mode must be 0, 1 or 2"
        self.call.needs(mode in _POSITIONS, rule, mode)
        self.call.leaves_out({"pos_encoding_mode": mode}, {"pos_encoding_mode": _NO_POSITIONS})

    def needs_paged(self, given: Mapping[str, Any]) -> None:
        """Refuse queries, caches and results other than the kernel is compiled for.

        Raises:
            KernelRefused: names what differs.
        """
        call, q, out = self.call, given["q"], given["o"]
        k, v = given["paged_k_cache"], given["paged_v_cache"]
        call.needs_shape("q", q, None, None, self.head_dim_qk)
        for name, tensor, dtype, dims in (
            ("paged_k_cache", k, self.kv, self.head_dim_qk),
            ("paged_v_cache", v, self.kv, self.head_dim_vo),
        ):
            call.needs_shape(name, tensor, None, None, None, dims)
            call.needs_dtype(name, tensor, dtype)
            call.needs_contiguous_last(name, tensor)
        call.needs(given["layout"] in (0, 1), "layout must be 0 or 1", given["layout"])
        call.needs_dtype("q", q, self.q)
        call.needs_contiguous_last("q", q)
        call.needs_shape("o", out, *q.shape[:2], self.head_dim_vo)
        call.needs_dtype("o", out, self.out)
        heads = k.shape[1 if given["layout"] else 2]
        rule = "heads of q must be a multiple of those of paged_k_cache"
        call.needs(heads > 0 and q.shape[1] % heads == 0, rule, f"{q.shape[1]} and {heads}")
        same = k.shape[:3] == v.shape[:3]
        rule = "paged_k_cache and paged_v_cache must have the same pages and heads"
        call.needs(same, rule, f"{list(k.shape)} and {list(v.shape)}")
        if not self.independent:
            rule = "k_cache and v_cache must have the same strides"
            call.needs(k.stride() == v.stride(), rule, f"{k.stride()} and {v.stride()}")
        self.needs_lse(given["maybe_lse"], q)

    def needs_lse(self, lse: torch.Tensor | None, q: torch.Tensor) -> None:
        """Refuse a place for logarithms that is not float32 [T, Hq]."""
        self.call.needs_shape("maybe_lse", lse, *q.shape[:2])
        self.call.needs_dtype("maybe_lse", lse, torch.float32)

    def needs_indices(self, given: Mapping[str, Any], *names: str) -> None:
        """Refuse lists of another kind than the kernel reads."""
        for name in names:
            self.call.needs_shape(name, given[name], None)
            self.call.needs_dtype(name, given[name], self.index)
            self.call.needs_contiguous(name, given[name])

    def read(self, given: Mapping[str, Any], name: str) -> torch.Tensor:
        """An added tensor that this launch reads.

        Raises:
            KernelRefused: it is missing, or the kernel takes it for another type.
        """
        tensor = given.get(name)
        rule = f"{name} must be a tensor for a kernel that reads it"
        self.call.needs(isinstance(tensor, torch.Tensor), rule, tensor)
        assert isinstance(tensor, torch.Tensor)
        kind = (self.types or {}).get(name, "")
        if kind in _TYPES:
            self.call.needs_dtype(name, tensor, *_TYPES[kind])
        self.call.needs_shape(name, tensor, None)
        self.call.needs_contiguous(name, tensor)
        return tensor


def added(
    tensors: Sequence[str], types: Sequence[str], numbers: Sequence[str], kinds: Sequence[str]
) -> tuple[tuple[Parameter, ...], dict[str, str]]:
    """(parameters, type of each tensor) that a variant adds to a module's functions.

    Args:
        tensors, numbers: names; those of tensors that may be missing begin with `maybe`.
        types, kinds: their types in C++.
    """
    found = [Parameter(n, "tensor?" if n.startswith("maybe") else "tensor") for n in tensors]
    found += [Parameter(n, _KINDS.get(kind, "any")) for n, kind in zip(numbers, kinds, strict=True)]
    return tuple(found), dict(zip(tensors, types, strict=True))
