"""Bounds of single fields, captured sizes and modes, and how much memory a config asks for."""

from __future__ import annotations

from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.engine_config import DIMENSIONS, EngineConfig

_LARGEST_CAPTURE = 8192
_LARGEST_POOL = 1 << 30
"""Elements of K and V together, and entries of a table of slots."""


def check_bounds(config: EngineConfig) -> None:
    """Numbers lie within the bounds of their rows."""
    for name, row in DIMENSIONS.items():
        if row.spec.bounds is None:
            continue
        value, (low, high) = getattr(config, name), row.spec.bounds
        if not low <= value <= high:
            way_out = "Use 0 to switch it off." if low == 0 else "Change the config."
            refuse(f"config.{name}", value, f"must lie in {low}..{high}", way_out)


def check_pools(config: EngineConfig) -> None:
    """Each size may be large, not all of them at once."""
    tokens = config.kv_pool_pages * max(config.page_size, config.swa_page_size)
    elements = tokens * config.num_kv_heads * (config.head_dim + config.v_head_dim)
    if elements > _LARGEST_POOL:
        refuse(
            "config.kv_pool_pages",
            config.kv_pool_pages,
            f"makes a KV pool of {elements} elements, more than {_LARGEST_POOL}",
            "Lower it, the page size or the heads.",
        )
    entries = config.req_pool_size * max(config.max_context_len, config.max_encoder_len)
    if entries > _LARGEST_POOL:
        refuse(
            "config.req_pool_size",
            config.req_pool_size,
            f"makes a table of {entries} slots, more than {_LARGEST_POOL}",
            "Lower it or the context.",
        )


def check_ladders(config: EngineConfig) -> None:
    """Captured sizes ascend."""
    _check_ladder("capture_bs", config.capture_bs)
    _check_ladder("capture_tokens", config.capture_tokens)


def _check_ladder(name: str, sizes: tuple[int, ...]) -> None:
    if any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
        refuse(
            f"config.{name}",
            sizes,
            "must be ascending sizes >= 1 without repeats",
            "Sort it and drop repeats.",
        )
    if sizes and sizes[-1] > _LARGEST_CAPTURE:
        refuse(f"config.{name}", sizes[-1], f"exceeds {_LARGEST_CAPTURE}", "Use a smaller size.")


def check_modes(config: EngineConfig) -> None:
    """Each captured mode has sizes."""
    modes = config.modes
    if not modes or "idle" in modes or len(set(modes)) != len(modes):
        refuse(
            "config.modes",
            modes,
            "must name each captured mode once, idle excepted",
            "List for example ['decode'].",
        )
    if set(modes) != {"prefill"} and not config.capture_bs:
        refuse("config.capture_bs", (), "is empty", "Name at least one batch size, e.g. [1].")
    if "prefill" in modes and not config.capture_tokens:
        refuse(
            "config.capture_tokens",
            (),
            "is empty although prefill is captured",
            "Name at least one token count, e.g. [8].",
        )


def check_runner(config: EngineConfig) -> None:
    """A CPU's runner captures decodes."""
    if config.runner == "cpu_graph" and config.modes != ("decode",):
        refuse(
            "config.runner",
            "cpu_graph",
            f"captures decode only; got modes {list(config.modes)}",
            "Use runner='graph'.",
        )
