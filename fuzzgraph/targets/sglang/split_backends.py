"""Servers with one attention backend for prefills and another one for decodes.

They are named by `--prefill-attention-backend` and `--decode-attention-backend`, and by
`--speculative-attention-mode` which of the two verifies drafts. Real here: both backends, and
`HybridAttnBackend`, which has them prepared, captured and run by the mode of a batch. The target's
own backend decodes or verifies; the other one is opened beside it, and may not attend.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import EngineError
from fuzzgraph.targets.sglang.release import engine_module

if TYPE_CHECKING:
    from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend
    from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

_HYBRID = "sglang.srt.layers.attention.hybrid_attn_backend"
_KINDS = {
    ("fa3", "mha"): ("fa3", "FA3"),
    ("fa3", "mla"): ("fa3", "FA3_MLA"),
    ("flashinfer", "mha"): ("flashinfer", "FLASHINFER"),
    ("flashinfer", "mla"): ("flashinfer_mla", "FLASHINFER_MLA"),
    ("triton", "mha"): ("triton", "TRITON"),
    ("triton", "mla"): ("triton", "TRITON"),
}
"""(`backend_beside`, kind of attention) -> module of `backends`, and the backend in it."""
_NAMES = {"flashinfer_mla": "flashinfer"}
"""Names of backends that servers know by another one."""


def is_split(config: EngineConfig) -> bool:
    """Whether a server has two backends."""
    return config.backend_beside != "none"


def backend_beside(config: EngineConfig) -> AttentionBackend:
    """The other backend, where a server has two."""
    module, name = _KINDS[config.backend_beside, config.attention]
    found: AttentionBackend = getattr(
        import_module(f"fuzzgraph.targets.sglang.backends.{module}"), name
    )
    return found


def refused_beside(config: EngineConfig) -> str | None:
    """Why the other backend could not have the modes that it has; None if it can."""
    return backend_beside(config).refuses(config) if is_split(config) else None


def decodes_on(config: EngineConfig, own: AttentionBackend) -> AttentionBackend:
    """The backend that decodes, which says how long padded rows are, in verifies too
    (hybrid_attn_backend.py, get_cuda_graph_seq_len_fill_value)."""
    return backend_beside(config) if config.verifies_as_prefill else own


def names_by_mode(config: EngineConfig, own: str) -> tuple[str, str]:
    """The backend of prefills and that of decodes, as servers name them."""
    if not is_split(config):
        return own, own
    named = _NAMES.get(own, own), config.backend_beside
    return named if config.verifies_as_prefill else (named[1], named[0])


def arguments(config: EngineConfig, own: str) -> dict[str, str]:
    """Server arguments of the two backends; none where there is one."""
    if not is_split(config):
        return {}
    prefills, decodes = names_by_mode(config, own)
    return {
        "prefill_attention_backend": prefills,
        "decode_attention_backend": decodes,
        "speculative_attention_mode": "prefill" if config.verifies_as_prefill else "decode",
    }


def open_split(config: EngineConfig, runner: ModelRunner, opened: Callable[[], Any]) -> Any:
    """The backend that `opened` gives; where a server has two, the engine's own over both.

    Args:
        opened: gives the target's own, and forgets the scratch memory of other sessions.
    """
    own = opened()
    if not is_split(config):
        return own
    other = backend_beside(config).opened(runner)
    _refuse_to_attend(other, config)
    prefills, decodes = (own, other) if config.verifies_as_prefill else (other, own)
    return engine_module(_HYBRID).HybridAttnBackend(
        runner, prefill_backend=prefills, decode_backend=decodes
    )


def _refuse_to_attend(other: Any, config: EngineConfig) -> None:
    """Have the other backend raise where it attends: no decode and no verify of the config may run
    on it (hybrid_attn_backend.py, _select_backend), and what it computes would be right."""

    def refuse(*_: Any, **__: Any) -> None:
        modes = " and ".join(config.modes)
        raise EngineError(f"{config.backend_beside} attends; the server has another for {modes}")

    other.forward_decode = other.forward_extend = refuse


def own_backend(config: EngineConfig, backend: Any) -> Any:
    """The target's own one of what `open_split` gave."""
    if not is_split(config):
        return backend
    return backend.prefill_backend if config.verifies_as_prefill else backend.decode_backend
