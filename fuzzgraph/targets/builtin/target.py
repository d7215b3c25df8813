"""The built-in engine as a target: the embedded default, and the home of planted faults."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from fuzzgraph.capabilities import WIDEST, Capabilities, unsupported_setting
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.overlap import ABOUT, HEALTHY, Overlap
from fuzzgraph.targets.builtin.session import BuiltinSession

_WHOLE_DIMENSIONS = (
    "modes", "attentions", "page_maps", "dtypes", "kernels", "split_kv", "metadata", "runners",
    "seq_len_fill_values", "free_paddings", "sliding_window", "swa_window", "swa_page_sizes",
    "encoder", "recurrent_state", "row_mixings", "max_spec_steps", "max_draft_tokens",
    "max_tp_size", "max_dp_size", "max_wide_batch", "mrope", "preemption",
)  # fmt: skip
"""What it has of everything that a case can say."""
_HAS = Capabilities(
    kv_dtypes=("auto", "float8_e4m3fn"),
    page_sizes=(1, 16, 32, 64, 128, 3, 5, 256, 480),
    max_context_len=LONGEST_CONTEXT,
    max_spec_topk=8,
    prefill_runners=("piecewise", "breakable"),
    **{name: getattr(WIDEST, name) for name in _WHOLE_DIMENSIONS},
)


def _serves(kernels: str) -> bool:
    """Whether what these kernels are written in is installed."""
    return kernels != "triton" or find_spec("triton") is not None


class BuiltinTarget:
    """Implements `ports.Target`.

    Args:
        components: the classes that the engine is made of.
        name: what findings call it.
        kernels: what cases are drawn for; either kind is served when a case asks for it. Triton's
            interpreter takes some hundred milliseconds for what torch does in one.
        overlap: what of the healthy engine's work overlaps.
    """

    about: str
    """What is driven, in one line."""
    engine_packages = ("fuzzgraph.targets.builtin",)
    """Where the engine's code lies."""

    def __init__(
        self,
        components: Components | None = None,
        name: str = "builtin",
        kernels: Literal["torch", "triton"] = "torch",
        overlap: Overlap = "",
    ) -> None:
        self.name = name
        self.about = f"the built-in engine with kernels in {kernels.capitalize()}"
        self.about += ABOUT[overlap]
        self.components = HEALTHY[overlap] if components is None else components
        self.capabilities = _HAS.replace(kernels=(kernels,))
        self.outputs_judged = {mode: "" for mode in _HAS.modes if mode != "idle"}

    def unsupported(self, config: EngineConfig) -> str | None:
        """A second layer in other modes than decode; kernels of either kind are served."""
        if config.swa_window and config.modes != ("decode",):
            return f"swa_window={config.swa_window} is driven in modes=('decode',) alone"
        if config.kernels not in self.capabilities.kernels and not _serves(config.kernels):
            return (
                f"kernels={config.kernels!r} needs triton, which is not installed here: "
                "pip install 'fuzzgraph[triton]'"
            )
        return unsupported_setting(_HAS, config)

    def open(self, config: EngineConfig, graphs: GraphEngine) -> BuiltinSession:
        return BuiltinSession(config, graphs, self.components)
