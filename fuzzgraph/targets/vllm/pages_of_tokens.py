"""A cache whose pages are one token's, which kernels take and backends do not offer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.vllm.kv_cache import kv_planes
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.runner_session import RunnerSession

_OFFERED = 16 * 1009
"""A page size that backends offer, and no other dimension of a cache has."""


def any_page(backend: Any) -> dict[str, Any]:
    """Name -> what a backend would answer that offers pages of any size."""
    answers: dict[str, Any] = {"get_supported_kernel_block_sizes": lambda *_: [1]}
    shape = getattr(backend, "get_kv_cache_shape", None)  # later releases ask nobody
    if shape is not None:
        answers["get_kv_cache_shape"] = lambda blocks, page, *rest, **more: tuple(
            page if each == _OFFERED else each for each in shape(blocks, _OFFERED, *rest, **more)
        )
    return answers


class PagesOfTokens(RunnerSession):
    """With the page size of a case, which kernels take and the backend does not offer."""

    def __init__(
        self, config: EngineConfig, graphs: GraphEngine, backend: str, *device: Any
    ) -> None:
        module, _, name = backend.rpartition(".")
        self._backend = getattr(engine_module(module), name)
        super().__init__(config, graphs, backend, *device)

    @contextlib.contextmanager
    def _server(self) -> Iterator[None]:
        with super()._server(), replaced_names([self._backend], any_page(self._backend)):
            yield

    def _runner_pools(self) -> Pools:
        (cache,) = self.runner.kv_caches
        return Pools(kv_planes=kv_planes(cache, self._config))
