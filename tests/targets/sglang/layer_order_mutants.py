"""Planted mix-ups of layers in models with several layers of a kind, each the change of one line of
sglang; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.backends.flashinfer import FLASHINFER
from fuzzgraph.targets.sglang.backends.gdn import DeltaNetTarget
from fuzzgraph.targets.sglang.backends.kda import ChannelDecayTarget
from fuzzgraph.targets.sglang.backends.trtllm_mha import TRTLLM_MHA
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_changed_sessions

Change = Callable[[Any], None]


def _pool(session: Any) -> Any:
    return session._model_runner.token_to_kv_pool


def _fa3(change: Change) -> Any:
    return with_changed_sessions(FA3.target("sglang-fa3", "decode"), change)


def _delta_net(change: Change) -> Any:
    return with_changed_sessions(DeltaNetTarget("sglang-gdn", "decode"), change)


def stored_in_the_first() -> Any:
    """Each layer stores keys and values where the first one of its kind has its."""

    def change(session: Any) -> None:
        line = "layer_id_pool, is_swa_layer = self.layers_mapping[layer_id]"
        other = "layer_id_pool, is_swa_layer = 0, self.layers_mapping[layer_id][1]"
        change_line(_pool(session), "set_kv_buffer", line, other)

    return _fa3(change)


def read_from_the_first() -> Any:
    """Each layer reads keys and values of the first one of its kind."""

    def change(session: Any) -> None:
        line = "layer_id_pool, is_swa_layer = self.layers_mapping[layer_id]"
        other = "layer_id_pool, is_swa_layer = 0, self.layers_mapping[layer_id][1]"
        change_line(_pool(session), "get_kv_buffer", line, other)

    return _fa3(change)


def unified_by_turns() -> Any:
    """One memory for all layers stores them by turns, as if the kinds took turns in the model."""

    def change(session: Any) -> None:
        line = "pool_layer_id, is_swa = self.layers_mapping[layer_id]"
        other = "pool_layer_id, is_swa = layer_id % 2, self.layers_mapping[layer_id][1]"
        change_line(_pool(session), "set_kv_buffer", line, other)

    return _fa3(change)


def unified_keys_of_the_first() -> Any:
    """The same reads keys of the first layer of a kind."""

    def change(session: Any) -> None:
        line = "pool_layer_id, is_swa = self.layers_mapping[layer_id]"
        other = "pool_layer_id, is_swa = 0, self.layers_mapping[layer_id][1]"
        change_line(_pool(session), "get_kv_buffer", line, other)

    return _fa3(change)


def window_by_number() -> Any:
    """FlashInfer's backend takes the first layer for the one that sees all keys."""

    def change(session: Any) -> None:
        line, other = "return layer.sliding_window_size == -1", "return layer.layer_id == 0"
        change_line(session.backend, "_get_wrapper_idx", line, other)

    return with_changed_sessions(FLASHINFER.target("sglang-flashinfer", "decode"), change)


def table_by_number() -> Any:
    """TensorRT-LLM's backend gives every second layer the window's page table."""

    def change(session: Any) -> None:
        line = "_, is_swa = self._swa_kv_pool.layers_mapping[layer.layer_id]"
        change_line(
            session.backend, "_get_layer_page_table", line, "is_swa = layer.layer_id % 2 == 1"
        )

    return with_changed_sessions(TRTLLM_MHA.target("sglang-trtllm-mha", "decode"), change)


def keys_of_the_first_full() -> Any:
    """All layers of softmax beside recurrent ones have the first one's keys and values."""

    def change(session: Any) -> None:
        line = "return self.full_attention_layer_id_mapping[layer_id]"
        change_line(_pool(session), "_transfer_full_attention_id", line, "return 0")

    return _delta_net(change)


def states_of_the_first() -> Any:
    """All recurrent layers have the first one's states."""

    def change(session: Any) -> None:
        pool = session._model_runner.req_to_token_pool
        change_line(pool, "mamba2_layer_index", "return self.mamba_map[layer_id]", "return 0")

    return _delta_net(change)


def states_of_the_next() -> Any:
    """Recurrent layers of KDA have one another's states."""

    def change(session: Any) -> None:
        pool = session._model_runner.req_to_token_pool
        line = "return self.mamba_map[layer_id]"
        other = "return (self.mamba_map[layer_id] + 1) % len(self.mamba_map)"
        change_line(pool, "mamba2_layer_index", line, other)

    return with_changed_sessions(ChannelDecayTarget("sglang-kda", "decode"), change)


def committed_in_the_first() -> Any:
    """States behind a verify are kept of the first recurrent layer alone."""

    def change(session: Any) -> None:
        line = "req_pool.get_speculative_mamba2_params_all_layers()"
        other = f"__import__('dataclasses').replace({line}, temporal={line}.temporal[:1])"
        change_line(session.backend, "update_mamba_state_after_mtp_verify", line, other)

    return with_changed_sessions(DeltaNetTarget("sglang-gdn-verify", "target_verify"), change)
