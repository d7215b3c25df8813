"""Planted bugs of the bound that KDA's decays have, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.kda import ChannelDecayTarget
from fuzzgraph.targets.sglang.runners.hybrid_prefill import FlatGatesPrefillTarget
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_LINEAR = "sglang.srt.layers.attention.linear"
_DISPATCHER = f"{_LINEAR}.kda_backend:KDAKernelDispatcher"
_RECURRENT = "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent"
_KERNEL = "fused_sigmoid_gating_delta_rule_update_kernel"
_GATE = "b_g = lower_bound * tl.sigmoid(tl.exp(b_A_log) * x)"
_HANDED_ON = "lower_bound=lower_bound,"

Change = Callable[[Any], None]


def _decode(change: Change) -> Callable[[], Any]:
    return lambda: with_changed_sessions(ChannelDecayTarget("sglang-kda", "decode"), change)


def _verify(change: Change) -> Callable[[], Any]:
    target = "sglang-kda-verify"
    return lambda: with_changed_sessions(ChannelDecayTarget(target, "target_verify"), change)


def _prefill(change: Change) -> Callable[[], Any]:
    return lambda: with_changed_sessions(FlatGatesPrefillTarget("sglang-kda-glm-prefill"), change)


def _line(holder: str, name: str, line: str, other: str) -> Change:
    return lambda session: change_line_elsewhere(session, holder, name, line, other)


decodes_without_a_bound = _decode(_line(_DISPATCHER, "decode", _HANDED_ON, "lower_bound=None,"))
verifies_without_a_bound = _verify(
    _line(_DISPATCHER, "target_verify", _HANDED_ON, "lower_bound=None,")
)
bound_for_parents = _verify(
    _line(
        _DISPATCHER,
        "target_verify",
        "retrieve_parent_token=retrieve_parent_token,",
        "retrieve_parent_token=lower_bound,",
    )
)
prompts_without_a_bound = _prefill(
    _line(
        f"{_LINEAR}.kda_backend",
        "kda_extend_in_graph",
        "lower_bound=layer.lower_bound,",
        "lower_bound=None,",
    )
)
# The bound as one might read its name: what softplus gives, and no less than that.
decays_cut_off = _decode(
    lambda session: change_kernel(
        session,
        _RECURRENT,
        _KERNEL,
        _GATE,
        "b_g = tl.maximum(lower_bound, -tl.exp(b_A_log) * tl.log(1.0 + tl.exp(x)))",
    )
)
gates_inverted = _verify(
    lambda session: change_kernel(
        session, _RECURRENT, _KERNEL, _GATE, _GATE.replace("* x)", "* -x)")
    )
)
