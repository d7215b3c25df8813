"""What a target can express: the bounds within which strategies draw cases for it, and what of a
saved case lies beyond them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from fuzzgraph.case import Case, EngineConfig, Mode, padded_size

__all__ = ["WIDEST", "Capabilities", "missing", "unsupported_case", "unsupported_setting"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The dimensions a target has. Strategies never draw outside; nothing is filtered away."""

    modes: tuple[Mode, ...] = ("decode",)
    """Forward modes; with `idle` among them, idle steps are drawn too."""
    page_sizes: tuple[int, ...] = (1,)
    page_maps: tuple[Literal["csr", "page_table"], ...] = ("csr",)
    attentions: tuple[Literal["mha", "mla"], ...] = ("mha",)
    dtypes: tuple[Literal["float32", "bfloat16", "float16"], ...] = ("float32",)
    kv_dtypes: tuple[Literal["auto", "float8_e4m3fn"], ...] = ("auto",)
    kernels: tuple[Literal["torch", "triton"], ...] = ("torch",)
    metadata: tuple[Literal["full", "raw_out_graph", "raw_in_graph"], ...] = ("full",)
    runners: tuple[Literal["graph", "cpu_graph"], ...] = ("graph",)
    prefill_runners: tuple[Literal["piecewise", "breakable"], ...] = ("piecewise",)
    seq_len_fill_values: tuple[Literal[0, 1], ...] = (1,)
    free_paddings: tuple[Literal["keep", "zero", "copy_live"], ...] = ("keep",)
    max_batch: int = 8
    max_context_len: int = 64
    max_q_heads: int = 4
    max_head_dim: int = 16
    max_tp_size: int = 1
    max_spec_topk: int = 1
    max_spec_steps: int = 1
    min_spec_steps: int = 1
    max_draft_tokens: int = 2
    sliding_window: bool = False
    encoder: bool = False
    recurrent_state: bool = False
    split_kv: bool = False
    mrope: bool = False
    eager_steps: bool = True
    """Whether batches run without a graph: steps that ask for it, and those above the ladder."""
    capture_beyond_pool: bool = True
    """Whether the largest captured size may exceed the request pool."""


WIDEST = Capabilities(
    modes=("decode", "target_verify", "draft_extend", "draft", "prefill", "idle"),
    page_sizes=(1, 2, 3, 16, 32, 64, 128, 256),
    page_maps=("csr", "page_table"),
    attentions=("mha", "mla"),
    dtypes=("float32", "bfloat16", "float16"),
    kv_dtypes=("auto", "float8_e4m3fn"),
    kernels=("torch", "triton"),
    metadata=("full", "raw_out_graph", "raw_in_graph"),
    runners=("graph", "cpu_graph"),
    prefill_runners=("piecewise", "breakable"),
    seq_len_fill_values=(0, 1),
    free_paddings=("keep", "zero", "copy_live"),
    max_context_len=512,
    max_tp_size=8,
    max_spec_topk=4,
    max_spec_steps=5,
    max_draft_tokens=8,
    sliding_window=True,
    encoder=True,
    recurrent_state=True,
    split_kv=True,
    mrope=True,
)
"""All that a case can say: the reach of a target without limits of its own."""


_SINGULAR = {
    "page_map": "page_maps",
    "attention": "attentions",
    "dtype": "dtypes",
    "kv_dtype": "kv_dtypes",
    "kernels": "kernels",
    "metadata": "metadata",
    "runner": "runners",
    "prefill_runner": "prefill_runners",
    "seq_len_fill_value": "seq_len_fill_values",
    "free_padding": "free_paddings",
}
_FLAGS = {
    "sliding_window": "sliding_window",
    "max_encoder_len": "encoder",
    "recurrent_state": "recurrent_state",
    "split_kv": "split_kv",
}
_ONES = {"attn_tp_size": "max_tp_size", "spec_topk": "max_spec_topk"}
"""A bound of one says that there are no ranks, no branches; higher ones are sizes."""


def unsupported_setting(capabilities: Capabilities, config: EngineConfig) -> str | None:
    """The first choice of a config that a target with this reach cannot express, in one line.

    For `Target.unsupported`. Sizes are left out: they bound what is drawn, and a saved case with
    larger ones is worth a try.

    >>> unsupported_setting(Capabilities(), EngineConfig(sliding_window=4))
    'sliding_window=4 is not driven'
    >>> unsupported_setting(Capabilities(), EngineConfig(dtype="bfloat16"))
    "dtype='bfloat16' is not driven, only float32"
    """
    strange = [mode for mode in config.modes if mode not in capabilities.modes]
    if strange:
        return f"mode {strange[0]!r} is not driven, only {', '.join(capabilities.modes)}"
    for name, plural in _SINGULAR.items():
        value, known = getattr(config, name), getattr(capabilities, plural)
        if value not in known:
            return f"{name}={value!r} is not driven, only {', '.join(map(str, known))}"
    for name, flag in _FLAGS.items():
        if getattr(config, name) and not getattr(capabilities, flag):
            return f"{name}={getattr(config, name)!r} is not driven"
    for name, bound in _ONES.items():
        if getattr(config, name) > 1 and getattr(capabilities, bound) == 1:
            return f"{name}={getattr(config, name)} is not driven"
    if not capabilities.capture_beyond_pool and config.capture_bs[-1:] > (config.req_pool_size,):
        return f"capture_bs up to {config.capture_bs[-1]} exceeds the request pool"
    return None


def unsupported_case(capabilities: Capabilities, case: Case) -> str | None:
    """Why a target cannot express one of the steps, in one line; None if it can express all.

    The config is judged by `Target.unsupported`. A saved case of another target may ask for more.
    """
    for number, step in enumerate(case.steps):
        if step.mrope and not capabilities.mrope:
            return f"steps[{number}].mrope is not driven"
        if capabilities.eager_steps:
            continue
        if step.via == "eager":
            return f"steps[{number}].via='eager' is not driven, only 'graph'"
        if step.rows and padded_size(case.config, step) is None:
            return f"steps[{number}] above the captured sizes is not driven"
    return None


def missing(capabilities: Capabilities) -> tuple[str, ...]:
    """What a case can say and this reach cannot, one line for each field; limits left out.

    >>> missing(Capabilities(modes=("decode", "draft", "prefill", "idle")))[0]
    'modes: target_verify, draft_extend'
    """
    lines = []
    for field in fields(Capabilities):
        widest, here = getattr(WIDEST, field.name), getattr(capabilities, field.name)
        name = field.name.replace("_", " ")
        if isinstance(widest, tuple):
            missing = [str(value) for value in widest if value not in here]
            if missing:
                lines.append(f"{name}: {', '.join(missing)}")
        elif widest is True and here is False:
            lines.append(name)
    return tuple(lines)
