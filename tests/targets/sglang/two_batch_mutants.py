"""Planted bugs of sglang's two-batch overlap; targets opened by name in a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession
from fuzzgraph.targets.sglang.backends.flashinfer import FLASHINFER
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.world import Batch
from tests.targets.sglang.planted import PlantedBackend

_CUT = "sglang.srt.batch_overlap.two_batch_overlap"
_BACKEND = "sglang.srt.layers.attention.tbo_backend"


class _OneBackend(BackendSession):
    """Both halves are prepared on one backend: the second takes the memory of the first."""

    def capture(self) -> None:
        first, _ = self.backend.children
        self.backend.children = [first, first]
        super().capture()


class _OldHalves(BackendSession):
    """A replay prepares the whole batch alone: halves keep what an earlier one left."""

    def prepare_replay(self, batch: Batch) -> None:
        names = {"_dispatch_children_from_replay_view": lambda *_: None}
        with replaced_names([self.backend], names):
            super().prepare_replay(batch)


class _CutElsewhere(BackendSession):
    """A replay cuts the live rows in two, where the graph was captured with half of all rows."""

    def prepare_replay(self, batch: Batch) -> None:
        def cut(forward_mode: Any, cuda_graph_num_tokens: int, spec_info: Any) -> tuple[int, int]:
            width = self.runner.width
            first = min(batch.raw_bs, cuda_graph_num_tokens // width) // 2
            return first, first * width

        module = engine_module(_CUT)
        with replaced_names([module], {"compute_split_indices_for_cuda_graph_replay": cut}):
            super().prepare_replay(batch)


class _ChangedView(BackendSession):
    """What a replay hands a half is changed by `_changed`."""

    def prepare_replay(self, batch: Batch) -> None:
        module = engine_module(_BACKEND)
        made = module._build_tbo_child_replay_fb_view

        def changed(whole: Any, **where: Any) -> Any:
            return self._changed(made(whole, **where), whole, where["child_bs"])

        with replaced_names([module], {"_build_tbo_child_replay_fb_view": changed}):
            super().prepare_replay(batch)

    def _changed(self, half: SimpleNamespace, whole: Any, rows: int) -> SimpleNamespace:
        raise NotImplementedError


class _RowsOfTheFirst(_ChangedView):
    """Both halves get the rows of the first."""

    def _changed(self, half: SimpleNamespace, whole: Any, rows: int) -> SimpleNamespace:
        half.req_pool_indices = whole.req_pool_indices[:rows]
        return half


class _HostLengthsOfTheFirst(_ChangedView):
    """Both halves get the lengths of the first in the host's memory, by which plans are made."""

    def _changed(self, half: SimpleNamespace, whole: Any, rows: int) -> SimpleNamespace:
        half.seq_lens_cpu = whole.seq_lens_cpu[:rows]
        return half


class _MaskOfTheFirst(BackendSession):
    """Both halves read the mask of the whole batch from its start."""

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        names = {"_compute_mask_offset": lambda *_: 0}
        with super().engine_runs(batch), replaced_names([engine_module(_CUT)], names):
            yield


class _EagerlyUncut(BackendSession):
    """Without a graph the second half keeps the metadata of an earlier batch."""

    _prepared = False

    def _prepare_eagerly(self) -> None:
        cut = self._last_batch.tbo_children
        if cut and self._prepared:
            cut[1].batch_size, kept = 0, cut[1].batch_size
            super()._prepare_eagerly()
            cut[1].batch_size = kept
        else:
            super()._prepare_eagerly()
        self._prepared = True


def one_backend() -> PlantedBackend:
    return PlantedBackend(_OneBackend)


def old_halves() -> PlantedBackend:
    return PlantedBackend(_OldHalves)


def cut_elsewhere() -> PlantedBackend:
    return PlantedBackend(_CutElsewhere)


def rows_of_the_first() -> PlantedBackend:
    return PlantedBackend(_RowsOfTheFirst)


def host_lengths_of_the_first() -> PlantedBackend:
    return PlantedBackend(_HostLengthsOfTheFirst, FLASHINFER)


def mask_of_the_first() -> PlantedBackend:
    return PlantedBackend(_MaskOfTheFirst, FLASHINFER, "target_verify")


def eagerly_uncut() -> PlantedBackend:
    return PlantedBackend(_EagerlyUncut)
