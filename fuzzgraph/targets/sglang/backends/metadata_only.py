"""Metadata targets such as `sglang-fa3`: backends whose kernels need a GPU, without the kernels.

The release's own decode runner and backend run: constructors, sizes, both preparations, the Triton
kernels that build metadata. Stood in for is compiled code that they call (`metadata_backends`).
What is judged is what the graph of the replayed size reads, at the addresses and in the shapes that
it had when it was captured; no attention runs and no output is promised.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu, trusting
from fuzzgraph.targets.offline.flashinfer_wrappers import install_wrappers
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.sglang.backends.metadata_backends import BACKENDS, MetadataBackend
from fuzzgraph.targets.sglang.decode_session import (
    DecodeSession,
    captures_drafts,
    keeps_ladder,
    load_once,
)
from fuzzgraph.targets.sglang.fields import input_fields, input_names
from fuzzgraph.targets.sglang.release import engine_module, has_module, release
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, no_forward
from fuzzgraph.targets.sglang.stubs.workspaces import forget_workspaces, keep_workspaces_small
from fuzzgraph.world import RESERVED_PAGE, RESERVED_SLOT, Batch

__all__ = ["MetadataSession", "MetadataTarget", "metadata_target"]

_TABLE = (
    "sglang metadata builders of the backend: pages of each row below its own length; a padded row "
    "lies in the pool's padding row"
)
_ONES = "sglang flashinfer_backend.py: indices count tokens, so a last page holds one"
_PLAN = "FlashInfer plan: kernels that read the device's offsets share work out by the host's"
_LENS = "sglang: a padded row has the backend's fill value, and the tokens it computes beyond that"
_SUMS = "sglang metadata builders of the backend: prefix sums over all rows of the graph"


class MetadataTarget(ReleasedTarget):
    """One backend of the sglang release that this process holds, in one mode."""

    def __init__(self, kind: MetadataBackend, mode: Mode) -> None:
        short = kind.name.replace("_", "-")
        self.name = f"sglang-{short}" if mode == "decode" else f"sglang-{short}-verify"
        self._kind = kind
        self.about = f"{kind.name}'s metadata on the decode runner, {mode} graphs; no outputs"
        self.capabilities = Capabilities(
            modes=(mode,),
            page_sizes=kind.page_sizes,
            attentions=(kind.attention,),
            max_batch=8,
            max_context_len=kind.max_context_len,
            max_spec_steps=3,
            max_draft_tokens=4,
            max_tp_size=4,
            # Where ranks share the rows, which the engine rounds the pool up for.
            capture_beyond_pool=True,
        )

    def _refused(self, config: EngineConfig) -> str | None:
        return captures_drafts(config) or keeps_ladder(config)

    def _session(self, config: EngineConfig, graphs: GraphEngine) -> MetadataSession:
        return MetadataSession(config, graphs, self._kind)

    def load(self) -> None:
        """Import the release of this process; `open` does it where nobody has."""
        module, _ = place_of(self._kind)
        keep_workspaces_small(**dict(self._kind.settings))
        load_once(module)


def place_of(kind: MetadataBackend) -> tuple[str, str]:
    """Module and class of the backend in this release.

    Raises:
        AdapterUnavailable: it has no such backend.
    """
    for module, backend in kind.places:
        if has_module(module):
            return module, backend
    raise AdapterUnavailable(
        f"sglang {release()} has no {kind.places[-1][1]}, which the targets of backend "
        f"{kind.name!r} drive. Name a release that has it: fuzzgraph targets lists them."
    )


def metadata_target(name: str, mode: Mode) -> MetadataTarget:
    """The target of the backend called `name`."""
    return MetadataTarget(next(kind for kind in BACKENDS if kind.name == name), mode)


def _fields(config: EngineConfig, tokens: int) -> tuple[Field, ...]:
    """Declared metadata of any backend; `tokens` are those that each row computes beyond its past.

    A backend has some of them.
    """
    past = 1 if tokens == 1 else 1 + tokens
    span, slot = PaddingRule("reserved"), PaddingRule("reserved", RESERVED_SLOT)
    return (
        *input_fields(config, 1),
        Field("cache_seqlens", "requests", "length", PaddingRule("fill", past),
              repeats="seq_lens", source=_LENS),
        Field("page_table", "page_table", "page", PaddingRule("reserved", RESERVED_PAGE),
              source=_TABLE),
        Field("cu_seqlens_q", "indptr", "offset", span, source=_SUMS, repeats="new_lens"),
        Field("cu_seqlens_k", "indptr", "offset", span, repeats="seq_lens", source=_SUMS),
        Field("kv_indptr", "indptr", "offset", span, repeats="seq_lens", source=_SUMS),
        Field("kv_indices", "indices", "slot", slot, source=_TABLE),
        Field("token_indices", "indices", "slot", slot, source=_TABLE),
        Field("kv_last_page_len", "requests", "length", PaddingRule("fill", 1), source=_ONES,
              repeats="one_each"),
        Field("qo_indptr", "indptr", "offset", span, source=_SUMS, repeats="new_lens"),
        Field("planned_kv_indptr", "indptr", "offset", span, repeats="seq_lens", source=_PLAN),
        Field("planned_qo_indptr", "indptr", "offset", span, repeats="new_lens", source=_PLAN),
    )  # fmt: skip


class MetadataSession(DecodeSession):
    """One backend and one decode runner with its captured graphs."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: MetadataBackend) -> None:
        self._kind = kind
        self._size: int | None = None
        self._read: dict[int, dict[str, torch.Tensor]] = {}
        self.inputs = input_names(config)
        verifies = config.modes == ("target_verify",)
        self.fields = _fields(config, config.draft_tokens if verifies else 1)
        model = Stub(forward=no_forward, shared_experts_config=None, modules=tuple)
        with cuda_on_cpu():
            super().__init__(config, graphs, backend=kind.name, model=model)

    def _open_backend(self, runner: ModelRunner) -> Any:
        place, backend = place_of(self._kind)
        module = engine_module(place)
        forget_workspaces(module)
        install_wrappers()
        if runner.device == "cpu":
            for holder, name, value in self._kind.stand_ins:
                if has_module(holder):
                    setattr(engine_module(holder), name, value)
            for name in self._kind.asserts_gpu:
                if hasattr(module, name):
                    setattr(module, name, trusting(getattr(module, name)))
        self._kind.adapt(runner)
        return getattr(module, backend)(runner)

    def capture(self) -> None:
        with cuda_on_cpu():
            super().capture()

    def _remember(self, padded_bs: int) -> None:
        self._size = padded_bs
        super()._remember(padded_bs)
        self._read[padded_bs] = self._metadata_tensors()

    def prepare_replay(self, batch: Batch) -> None:
        with cuda_on_cpu():
            super().prepare_replay(batch)
        self._size = None if self._eager else self.runner.padded_bs

    def eager(self, batch: Batch) -> None:
        with cuda_on_cpu():
            super().eager(batch)
        self._size = None

    def _metadata(self) -> Any:
        """What the backend holds for the graph prepared last, or for the eager forward."""
        return self._kind.held(self.backend, self._config.modes[0], self._size)

    def _metadata_tensors(self) -> dict[str, torch.Tensor]:
        return self._kind.read(self._metadata())

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a kernel reads: below the last offset, below each row's own length."""
        held = self._metadata_tensors() if self._size is None else self._read[self._size]
        used = {name: tensor.clone() for name, tensor in held.items()}
        used |= self._kind.planned(self._metadata())
        if "kv_indices" in used:
            used["kv_indices"] = used["kv_indices"][: used["kv_indptr"][-1]]
        lens = lens + (self._config.draft_tokens if self._verifies else 0)
        lens = used.get("cache_seqlens", lens)
        if "page_table" in used:
            used["page_table"] = _below(used["page_table"], lens, self._config.page_size)
        if "token_table" in used:
            used |= _packed(used.pop("token_table"), lens)
        return used


def _below(table: torch.Tensor, lens: torch.Tensor, page_size: int) -> torch.Tensor:
    """[rows of `lens`, widest used] pages; 0 where a row's length has ended.

    Where each token has a row of its own, those of a request stand side by side.
    """
    pages = (lens.to(torch.int64) + page_size - 1) // page_size
    each = _rows_of_each(table, lens)
    used = table[: len(lens) * each, : int(pages.max())].clone()
    ended = torch.arange(used.shape[1]) >= pages.repeat_interleave(each)[:, None]
    return used.masked_fill_(ended, 0).view(len(lens), -1)


def _packed(table: torch.Tensor, lens: torch.Tensor) -> dict[str, torch.Tensor]:
    """A table of slots, as the slots of each row below its length."""
    each = _rows_of_each(table, lens)
    below = lens.to(torch.int64).repeat_interleave(each)
    rows = [table[row, :length] for row, length in enumerate(below.tolist())]
    ends = torch.cumsum(below, 0)
    return {
        "token_indices": torch.cat(rows),
        "token_indptr": torch.cat((ends.new_zeros(1), ends)).int(),
    }


def _rows_of_each(table: torch.Tensor, lens: torch.Tensor) -> int:
    return max(1, len(table) // len(lens))
