"""Translates a logical batch into the engine's own `ForwardBatch`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch

from fuzzgraph.memory.transfers import on_host
from fuzzgraph.recurrent_layers.draft_paths import children
from fuzzgraph.targets.sglang.forward_batch.data_ranks import count_ranks
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.two_batches import agree_on_halves
from fuzzgraph.world import Batch, IntArray


def engine_tensor(values: IntArray | list[int], device: str) -> torch.Tensor:
    """A tensor of its own: the batch is the harness's, and is used again for the twins."""
    return torch.tensor(values, device=device)


def mirror(values: IntArray) -> torch.Tensor:
    """The same in memory of the host, as the scheduler keeps it (ScheduleBatch.seq_lens_cpu)."""
    return on_host(torch.tensor(values))


@functools.cache
def _names(struct: type) -> frozenset[str]:
    return frozenset(entry.name for entry in dataclasses.fields(struct))


def given(struct: type, values: dict[str, Any]) -> Any:
    """An instance of the engine's dataclass from those `values` that this release knows."""
    known = _names(struct)
    return struct(**{name: value for name, value in values.items() if name in known})


def bound(forward_batch: Any, runner: ModelRunner) -> Any:
    """The batch with the plan of its reads, as `ForwardBatch.init_new` leaves it from 0.5.22 on."""
    translator = runner.kv_index_translator
    if hasattr(translator, "own_plan"):
        translator.own_plan(forward_batch).bind(forward_batch, translator)
    return forward_batch


def _engine_lens(batch: Batch) -> IntArray:
    """`seq_lens` as the scheduler says them: before a verify, without the tokens it checks.

    Source: sglang EagleVerifyInput.prepare_for_verify allocates slots and leaves seq_lens.
    """
    return batch.cached_lens if batch.mode == "target_verify" else batch.seq_lens


def forward_batch(batch: Batch, runner: ModelRunner) -> Any:
    """A decode, verify or idle batch."""
    info = engine_module("sglang.srt.model_executor.forward_batch_info")
    lens = _engine_lens(batch)
    mode = {
        "decode": info.ForwardMode.DECODE,
        "idle": info.ForwardMode.IDLE,
        "target_verify": info.ForwardMode.TARGET_VERIFY,
    }[batch.mode]
    # A rank without requests gets an empty one (sglang EagleVerifyInput.create_idle_input, which
    # names device='cuda' in old releases); without any, the runner would capture all graphs anew.
    verifies = mode.is_target_verify() or (mode.is_idle() and not runner.spec_algorithm.is_none())
    spec = _verify_input(batch, runner, lens) if verifies else None
    # An n-gram worker has no model that reads hidden states, and does not say.
    hidden = getattr(spec, "capture_hidden_mode", info.CaptureHiddenMode.NULL)
    values = {
        **decode_values(batch, runner, lens),
        "forward_mode": mode,
        "capture_hidden_mode": hidden,
        "spec_info": spec,
    }
    if batch.others_prefill:  # an idle rank makes a prompt of its own (prepare_mlp_sync_batch)
        values["orig_seq_lens"] = engine_tensor(batch.seq_lens, runner.device).int()
    made = given(info.ForwardBatch, values)
    if runner.dp_size > 1:
        count_ranks(made, batch, runner)
    if runner.configuration.config.two_batch_overlap:
        agree_on_halves(made, batch)
    return bound(made, runner)


def decode_values(batch: Batch, runner: ModelRunner, lens: IntArray) -> dict[str, Any]:
    """What every batch says, with the dtypes of sglang's scheduler: int64 throughout.

    Args:
        lens: lengths as the scheduler says them.
    """
    info = engine_module("sglang.srt.model_executor.forward_batch_info")
    device = runner.device
    return {
        "batch_size": batch.raw_bs,
        "input_ids": engine_tensor(batch.input_ids, device),
        "req_pool_indices": engine_tensor(batch.req_pool_indices, device),
        "seq_lens": engine_tensor(lens, device),
        "seq_lens_cpu": mirror(lens),
        "seq_lens_sum": int(lens.sum()),
        "out_cache_loc": engine_tensor(batch.map_slot_mapping, device),
        **_window_slots(info.ForwardBatch, batch, runner),
        "positions": engine_tensor(batch.positions, device),
        "mrope_positions": _mrope(batch, device),
        **_encoders(batch, runner),
        **_tracked(batch, device),
        **_token_counts(info.ForwardBatch, batch.num_tokens, device),
        # All data-parallel ranks agree to take the graph, unless some compute prompts.
        "can_run_dp_cuda_graph": not batch.others_prefill,
        "can_run_decode_cuda_graph": not batch.others_prefill,
        "is_extend_in_batch": batch.others_prefill,
        "return_logprob": False,
        "spec_algorithm": runner.spec_algorithm,
        "req_to_token_pool": runner.req_to_token_pool,
        "token_to_kv_pool": runner.token_to_kv_pool,
        "attn_backend": runner.attn_backend,
    }


def _window_slots(struct: type, batch: Batch, runner: ModelRunner) -> dict[str, torch.Tensor]:
    """Up to 0.5.12 a batch says where in the window's pool its tokens go (ForwardBatch.init_new);
    backends look it up since."""
    if not runner.is_hybrid_swa or "out_cache_loc_swa" not in _names(struct):
        return {}
    slots = engine_tensor(batch.slot_mapping, runner.device)
    allocator = runner.token_to_kv_pool_allocator
    return {"out_cache_loc_swa": allocator.translate_loc_from_full_to_swa(slots)}


def _mrope(batch: Batch, device: str) -> torch.Tensor | None:
    """[3, tokens]: time, height and width of each token's place in an image, here all alike."""
    if batch.mrope is None:
        return None
    return engine_tensor(np.tile(batch.mrope, (3, 1)), device)


def _token_counts(struct: type, num_tokens: int, device: str) -> dict[str, Any]:
    """The data-parallel rank's tokens; the runner works out its own share of them.

    The whole count got a field of its own in 0.5.20; the other one is left empty since.
    """
    count = engine_tensor([num_tokens], device).int()
    if "global_num_token_non_padded" not in _names(struct):
        return {"num_token_non_padded": count}
    return {"global_num_token_non_padded": count, "global_num_token_non_padded_cpu": num_tokens}


def _tracked(batch: Batch, device: str) -> dict[str, torch.Tensor]:
    """Which states the prefix cache keeps, and where (ScheduleBatch.prepare_for_decode); an idle
    batch does not say. A verify, and the draft-extend behind it, have no mask (sglang spec_utils.py
    `prepare_mamba_track_for_verify`)."""
    if not len(batch.track_slots):
        return {}
    slots = {"mamba_track_indices": engine_tensor(batch.track_slots, device)}
    if batch.mode in ("target_verify", "draft_extend"):
        return slots
    return {**slots, "mamba_track_mask": engine_tensor(batch.state_tracked, device).bool()}


def _encoders(batch: Batch, runner: ModelRunner) -> dict[str, Any]:
    """What a decode says of encoders, all of which ran with a prompt
    (ScheduleBatch.prepare_encoder_info_decode)."""
    if not runner.model_config.is_encoder_decoder:
        return {}
    return {
        "encoder_cached": [True] * batch.raw_bs,
        "encoder_lens": engine_tensor(batch.encoder_lens, runner.device),
        "encoder_lens_cpu": batch.encoder_lens.tolist(),
        "encoder_out_cache_loc": engine_tensor([], runner.device).long(),
    }


def _ngram_input(batch: Batch, runner: ModelRunner, lens: IntArray) -> Any:
    """As the n-gram worker makes one, its mask a new tensor in every step (sglang 0.5.23
    ngram_worker.py, _prepare_for_speculative_decoding)."""
    return engine_module("sglang.srt.speculative.ngram_info").NgramVerifyInput(
        draft_token=engine_tensor(batch.input_ids, runner.device),
        custom_mask=_tree_mask(batch, lens, runner.device),
        positions=engine_tensor(batch.positions, runner.device),
        draft_token_num=runner.server_args.speculative_num_draft_tokens,
    )


def _verify_input(batch: Batch, runner: ModelRunner, lens: IntArray) -> Any:
    if runner.spec_algorithm.is_ngram():
        return _ngram_input(batch, runner, lens)
    eagle = engine_module("sglang.srt.speculative.eagle_info").EagleVerifyInput
    hidden = engine_module("sglang.srt.model_executor.forward_batch_info").CaptureHiddenMode
    args = runner.server_args
    tree = dict.fromkeys(("index", "next_token", "next_sibling", "cum_len"))
    if args.speculative_eagle_topk > 1 and runner.mambaish_config is not None:
        # Layers with a state read them; others do not before sampling.
        first, sibling = children(batch, args.speculative_num_draft_tokens)
        tree |= {
            "next_token": engine_tensor(first, runner.device),
            "next_sibling": engine_tensor(sibling, runner.device),
        }
    retrieved = {
        f"{word}_{name}": value
        for word in ("retrieve", "retrive")  # spelled either way, by release
        for name, value in tree.items()
    }
    return given(
        eagle,
        {
            **retrieved,
            "draft_token": engine_tensor(batch.input_ids, runner.device),
            "custom_mask": _tree_mask(batch, lens, runner.device),
            "positions": engine_tensor(batch.positions, runner.device),
            "spec_steps": args.speculative_num_steps,
            "topk": args.speculative_eagle_topk,
            "draft_token_num": args.speculative_num_draft_tokens,
            "capture_hidden_mode": hidden.FULL,
            "seq_lens_sum": int(lens.sum()),
            "seq_lens_cpu": mirror(lens),
        },
    )


def _tree_mask(batch: Batch, lens: IntArray, device: str) -> torch.Tensor:
    """Flat bool: for each draft token its row of [cached length + draft tokens] visible keys."""
    parts = []
    for row, parents in enumerate(() if batch.tree_parents is None else batch.tree_parents):
        seen = np.eye(len(parents), dtype=bool)
        for child, parent in enumerate(parents):
            if parent >= 0:
                seen[child] |= seen[parent]
        past = np.ones((len(parents), int(lens[row])), dtype=bool)
        parts.append(np.concatenate((past, seen), axis=1).reshape(-1))
    return torch.tensor(np.concatenate(parts) if parts else np.zeros(0, bool), device=device)
