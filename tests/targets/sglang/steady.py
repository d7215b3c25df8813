"""A target that refuses to capture after the capture; opened by name in a worker."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends.triton import TritonTarget

__all__ = ["steady_verify"]


def steady_verify() -> TritonTarget:
    target = TritonTarget("sglang-triton-verify", "target_verify")
    open_session = target.open

    def open_steady(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        prepare = session.prepare_replay

        def checked(batch: Any) -> None:
            before = graphs.captured
            prepare(batch)
            assert graphs.captured == before, "the engine captured its graphs anew"

        session.prepare_replay = checked  # type: ignore[method-assign]
        return session

    target.open = open_steady  # type: ignore[method-assign]
    return target
