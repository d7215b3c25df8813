"""What every target on a released engine is and refuses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fuzzgraph.capabilities import Capabilities, unsupported_setting
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.fp8_weights import Fp8Weights
from fuzzgraph.handover import Excuse
from fuzzgraph.ports import GraphEngine, Session

__all__ = ["ReleasedTarget"]

_NARROWEST = 16
"""Columns that products of tiles take at least (reports/compiled.md)."""
_HEADS = ((_NARROWEST, _NARROWEST), (32, 32), (64, 64), (128, 128), (256, 256))
"""Of queries and values, unless a target's kernels are built for others."""
_SERVED = {"max_batch": 256, "max_q_heads": 32, "max_context_len": 32768}
"""Bounds of what profile `device` draws; other profiles stay below them."""
_SERVED_PAGE = 64
"""The largest page that most servers have."""
_LATENT_HEADS = ((576, 512),)
"""DeepSeek's rows of latent attention, which all kernels are built for."""
_NO_HEADS = ((0, 0),)
"""Rare ones of a device: it has those above alone."""


class ReleasedTarget:
    """One mode of one runner or backend of the release that this process holds.

    A target names itself, its package and what it can express, and opens a session; see `load`,
    `refused` and `open_session`.
    """

    name: str
    about: str
    """What is driven, in one line."""
    capabilities: Capabilities
    package: str
    """Released package that the engine comes in, for `--release`."""
    isolated = True
    """It runs in a process of its own: one process holds one release."""
    outputs_judged: Mapping[Mode, str] = MappingProxyType({})
    """Mode whose outputs its sessions promise -> for which cases, '' for all of them."""
    excuses: tuple[Excuse, ...] = ()
    """Rules of handing over that the engine need not follow, each with its source."""
    fp8_weights: Fp8Weights | None = None
    """How its kernels round softmax's weights to FP8, where keys and values are FP8."""
    widens_fp8 = False
    """Whether its kernels bring these to the model's dtype instead, before they multiply."""
    not_on_device = ""
    """Why it cannot be judged on a GPU; '' if it can."""
    any_page_size = False
    """Whether pages of other sizes than `capabilities` draws are driven too."""

    @property
    def stood_in_for(self) -> tuple[str, ...]:
        """What of the engine does not run, a clause each."""
        return ()

    @property
    def device_capabilities(self) -> Capabilities:
        """On a GPU, where kernels are compiled: heads as wide as they take, and dtypes that servers
        run. Float32 is left out, since products of tiles round it there."""
        can = self.capabilities
        built = tuple(pair for pair in can.built_heads if min(pair) >= _NARROWEST)
        heads = _LATENT_HEADS if can.attentions == ("mla",) else built or _HEADS
        # What tells states of recurrent layers apart is exact in float16 and not in bfloat16.
        dtypes = ("float16",) if can.recurrent_state else ("bfloat16", "float16")
        served = {} if "prefill" in can.modes else _SERVED
        page = (_SERVED_PAGE,) if self.any_page_size else ()
        # Of other compiled kernels nobody has worked out what they round to FP8.
        known = self.widens_fp8 or self.fp8_weights is not None
        return can.replace(
            dtypes=dtypes,
            head_dims=heads,
            max_head_dim=heads[-1][0],
            rare_head_dims=_NO_HEADS,
            page_sizes=tuple(dict.fromkeys((*can.page_sizes, *page))),
            kv_dtypes=tuple(name for name in can.kv_dtypes if name == "auto" or known),
            **{name: max(most, getattr(can, name)) for name, most in served.items()},
        )

    @property
    def mode(self) -> Mode:
        """The mode that it captures graphs for; a server captures one."""
        mode: Mode = self.capabilities.modes[0]
        return mode

    def unsupported(self, config: EngineConfig) -> str | None:
        """Names the first setting that this target does not drive: its own rules come first.

        What they do not mention is bounded by `capabilities`, so that a setting which a later
        FuzzGraph brings is refused, not ignored.
        """
        # An idle rank replays the graphs of another mode.
        captured = tuple(mode for mode in self.capabilities.modes if mode != "idle")
        if config.modes != captured:
            return f"captures {self.mode} graphs only, not {list(config.modes)}"
        sizes = self.capabilities.page_sizes
        if not self.any_page_size and config.page_size not in sizes:
            return f"page_size={config.page_size} is not driven, only {', '.join(map(str, sizes))}"
        return self.refused(config) or unsupported_setting(self.capabilities, config)

    def refused(self, config: EngineConfig) -> str | None:
        """Why this engine cannot have a config that its capabilities allow, in one line."""
        return None

    def unserved(self, config: EngineConfig) -> str | None:
        """Why no server of the release has a config that is driven here, in one line, with the
        engine's own line that says so. Sizes do not count."""
        return None

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Session:
        """The engine's own runner, with pools and backend of this release.

        Raises:
            AdapterUnavailable: the engine is not here, or lacks what this target drives.
        """
        self.load()
        return self.open_session(config, graphs)

    def load(self) -> None:
        """Import the release of this process; a worker calls it before the first case's deadline.

        Raises:
            AdapterUnavailable: as `open`.
        """

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Session:
        raise NotImplementedError
