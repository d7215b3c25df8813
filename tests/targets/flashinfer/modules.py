"""Modules as FlashInfer's own code has them generated, for two rows of a page each."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.memory import GuardedMemory
from fuzzgraph.targets.flashinfer import compiled

ROWS, Q_HEADS, KV_HEADS, COLUMNS, PAGE = 2, 4, 2, 8, 2
RANK, ROPE = 8, 4
FLOATS = (torch.float32,) * 3
_NUMBERS: Any = ("logits_soft_cap", "sm_scale", "rope_rcp_scale", "rope_rcp_theta")
_MASK = ("maybe_custom_mask", "maybe_mask_indptr", "maybe_alibi_slopes")
_VARIANT: Any = ("DefaultAttention", "#include<flashinfer/attention/variants.cuh>")


def decode_module(dims: Any = (COLUMNS, COLUMNS), **flags: Any) -> Any:
    more: Any = (("maybe_alibi_slopes",), ("float",), _NUMBERS, ("double",) * 4)
    return compiled._decode("uri", *FLOATS, torch.int32, *dims, *more, *_VARIANT, **flags)


def prefill_module(backend: str = "fa2", dims: Any = (COLUMNS, COLUMNS), **flags: Any) -> Any:
    if backend == "fa2":
        more: Any = (_MASK, ("uint8_t", "int32_t", "float"), _NUMBERS, ("double",) * 4)
    else:
        numbers = ("logits_soft_cap", "sm_scale", "scale_v_scalar")
        more = (("maybe_scale_v",), ("float",), numbers, ("double",) * 3)
    return compiled._prefill(backend, "uri", *FLOATS, torch.int32, *dims, *more, *_VARIANT, **flags)


def latent_module() -> Any:
    return compiled._Latent("fa2", *FLOATS, torch.int32, RANK, ROPE, False)


class Launch:
    """A module, what it is planned with and run with, in guarded memory; subclasses say which.

    `given` are the plan's arguments and `ran` those of the run, by name, in the order of the
    compiled function; what a test changes there is handed over.
    """

    module: Any
    method = "paged_run"

    def __init__(self) -> None:
        self.memory = GuardedMemory(capacity=1 << 22)
        with self.memory.intercept("engine"):
            self.workspace = torch.zeros(1 << 20, dtype=torch.uint8, device=self.device)
            self.ints = torch.zeros(4096, dtype=torch.uint8, device=self.device)
            self.staged = torch.zeros(4096, dtype=torch.uint8)
            self.make()
        self.info: list[int] = []

    @property
    def device(self) -> torch.device:
        """Of the session, which tells memory of the device from the host's."""
        from fuzzgraph.memory.side_requests import SESSION_CPU

        return SESSION_CPU

    def make(self) -> None:
        raise NotImplementedError

    given: dict[str, Any]
    ran: dict[str, Any]

    def plan(self, *, count: int | None = None, **changed: Any) -> None:
        with self.memory.intercept("engine"):
            args = list((self.given | changed).values())[:count]
            self.info = self.module.plan(self.workspace, self.ints, self.staged, *args)

    def run(self, **changed: Any) -> None:
        with self.memory.intercept("engine"):
            known = {"info": self.info, **self.ran} | changed
            getattr(self.module, self.method)(self.workspace, self.ints, *known.values())

    @property
    def misuses(self) -> list[str]:
        return [one.argument for one in self.memory.lanes.report.take_misuses()]

    @property
    def strays(self) -> str:
        return str(self.memory.lanes.report.take_accesses())

    def on_device(self, *values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        with self.memory.intercept("engine"):
            return torch.tensor(values, dtype=dtype, device=self.device)

    def paged(self) -> None:
        """Queries, caches and lists of two rows with a page each."""
        self.q = torch.randn(ROWS, Q_HEADS, COLUMNS, device=self.device)
        self.cache = torch.randn(4, PAGE, KV_HEADS, COLUMNS, device=self.device)
        self.indptr = torch.tensor([0, 1, 2], dtype=torch.int32)
        self.lens = torch.tensor([1, 2], dtype=torch.int32)
        lists = ((0, 1, 2), (2, 3), (1, 2))
        self.lists = [torch.tensor(each, dtype=torch.int32, device=self.device) for each in lists]
        self.out = torch.empty(ROWS, Q_HEADS, COLUMNS, device=self.device)
        self.sizes = {
            "num_qo_heads": Q_HEADS, "num_kv_heads": KV_HEADS, "page_size": PAGE,
            "enable_cuda_graph": False,
        }  # fmt: skip
        self.paged_ran = {"q": self.q, "k": self.cache, "v": self.cache}
        self.lists_ran = {
            "indptr": self.lists[0], "indices": self.lists[1], "last": self.lists[2],
            "out": self.out, "lse": None,
        }  # fmt: skip


class Decode(Launch):
    method = "run"

    def make(self) -> None:
        self.paged()
        self.module = decode_module()
        self.given = {
            "indptr": self.indptr, "batch_size": ROWS, **self.sizes, "window_left": -1,
            "logits_soft_cap": 0.0, "head_dim_qk": COLUMNS, "head_dim_vo": COLUMNS,
            "empty_q": torch.empty(0), "empty_kv": torch.empty(0),
        }  # fmt: skip
        self.ran = {
            **self.paged_ran, **self.lists_ran, "layout": 0, "window_left": -1, "pdl": False,
            "alibi": None, "soft_cap": 0.0, "sm_scale": 1.0, "rope_scale": 1.0, "rope_theta": 1e-4,
        }  # fmt: skip


class Prefill(Launch):
    """FlashAttention 2; two rows of one query."""

    backend = "fa2"
    behind: dict[str, Any] = {
        "fixed_split_size": -1, "disable_split_kv": False, "num_colocated_ctas": 0,
        "uniform_q_len": 0,
    }  # fmt: skip
    added: dict[str, Any] = {
        "mask": None, "mask_indptr": None, "alibi": None, "soft_cap": 0.0, "sm_scale": 1.0,
        "rope_scale": 1.0, "rope_theta": 1e-4,
    }  # fmt: skip

    def make(self) -> None:
        self.paged()
        self.module = prefill_module(self.backend)
        self.given = {
            "qo_indptr": self.indptr.clone(), "kv_indptr": self.indptr, "kv_len_arr": self.lens,
            "total_num_rows": ROWS, "batch_size": ROWS, **self.sizes, "head_dim_qk": COLUMNS,
            "head_dim_vo": COLUMNS, "causal": True, "window_left": -1, **self.behind,
        }  # fmt: skip
        self.ran = {
            **self.paged_ran, "qo_indptr": self.lists[0].clone(), **self.lists_ran, "mode": 1,
            "layout": 0, "window_left": -1, "pdl": False, **self.added,
        }  # fmt: skip


class PrefillSm90(Prefill):
    """FlashAttention 3."""

    backend = "fa3"
    behind = {}
    added = {"scale_v": None, "soft_cap": 0.0, "sm_scale": 1.0, "scale_v_scalar": 1.0}


class Latent(Launch):
    method = "run"

    def make(self) -> None:
        self.module = latent_module()
        self.q = torch.randn(4, Q_HEADS, RANK + ROPE, device=self.device)
        self.cache = torch.randn(4, PAGE, RANK + ROPE, device=self.device)
        self.out = torch.empty(4, Q_HEADS, RANK, device=self.device)
        self.given = {
            "qo_indptr": torch.tensor([0, 2, 4], dtype=torch.int32),
            "kv_indptr": torch.tensor([0, 1, 2], dtype=torch.int32),
            "kv_len": torch.tensor([2, 2], dtype=torch.int32),
            "num_heads": Q_HEADS, "head_dim_o": RANK, "causal": False,
        }  # fmt: skip
        indices = torch.tensor([2, 3], dtype=torch.int32, device=self.device)
        self.ran = {
            "q_nope": self.q[..., :RANK], "q_pe": self.q[..., RANK:],
            "ckv": self.cache[..., :RANK], "kpe": self.cache[..., RANK:], "indices": indices,
            "out": self.out, "lse": None, "mode": 0, "num_heads": Q_HEADS, "page_size": PAGE,
            "sm_scale": 1.0, "natural": False,
        }  # fmt: skip
