"""Commits the states of a verify, as the release's EAGLE worker does once it has sampled.

The worker's own code says which states stay, and which one it keeps for the prefix cache. It is a
method of the worker up to 0.5.13 and a function since; from 0.5.22 on a kernel that makes other
outputs too has worked both out before, where no drafts branch. In place of what it samples stand
the tokens of the batch that stay.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.recurrent_layers.draft_paths import kept_paths
from fuzzgraph.targets.offline.cuda_on_cpu import tensors_claim_cuda
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.forward_batch.decode import engine_tensor
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_FUNCTIONS = "sglang.srt.speculative.spec_utils"
KERNELS = "sglang.kernels.ops.speculative.eagle"
_INFO = "sglang.srt.model_executor.forward_batch_info"
COMMITS_SINCE = (0, 5, 10)
"""The first release whose worker for overlapped scheduling commits states."""


def commit_states(batch: Batch, runner: ModelRunner) -> None:
    """Have the engine put the states that stay of a verify, and those that it keeps, in place.

    Args:
        batch: with at least one row, verified just now.
        runner: whose backend has verified it.
    """
    drafts = runner.server_args.speculative_num_draft_tokens
    paths = stayed_paths(batch, runner)
    accept_lens = engine_tensor([len(path) for path in paths], runner.device).int()
    accepted = {
        "accept_lens": accept_lens,
        "accept_length": accept_lens,  # by release
        "accept_index": _accept_index(paths, drafts, runner.device),
    }
    target, scheduled = Stub(model_runner=runner), _scheduled(batch, runner, drafts)
    functions = engine_module(_FUNCTIONS)
    if hasattr(functions, "commit_mamba_states_after_verify"):
        call_with_known(
            tensors_claim_cuda(functions.commit_mamba_states_after_verify),
            target_worker=target,
            batch=scheduled,
            draft_token_num=drafts,
            prepared_step_indices=_prepared(batch, scheduled, accepted, drafts),
            **accepted,
        )
        return
    worker = Stub(
        speculative_num_draft_tokens=drafts, server_args=runner.server_args, target_worker=target
    )
    call_with_known(
        engine_module(_WORKER).EAGLEWorkerV2._mamba_verify_update,
        self=worker,
        batch=scheduled,
        verify_input=scheduled.spec_info,
        bs=batch.raw_bs,
        **accepted,
    )


def _scheduled(batch: Batch, runner: ModelRunner, drafts: int) -> Any:
    """What of the scheduler's batch the worker reads behind a verify."""
    tracked = engine_tensor(batch.track_slots, runner.device) if len(batch.track_slots) else None
    return Stub(
        forward_mode=engine_module(_INFO).ForwardMode.TARGET_VERIFY,
        mamba_track_indices=tracked,
        req_pool_indices=engine_tensor(batch.req_pool_indices, runner.device),
        seq_lens=engine_tensor(batch.cached_lens, runner.device),
        spec_info=Stub(topk=runner.server_args.speculative_eagle_topk, draft_token_num=drafts),
        tree_cache=Stub(page_size=runner.page_size),
    )


def stayed_paths(batch: Batch, runner: ModelRunner) -> list[list[int]]:
    """[raw_bs] the drafts of each row that stay, in order, by their places in it."""
    if runner.server_args.speculative_eagle_topk > 1:
        return kept_paths(batch)
    return [list(range(count)) for count in (batch.stayed_lens - batch.cached_lens).tolist()]


def _accept_index(paths: list[list[int]], drafts: int, device: str) -> torch.Tensor:
    """[raw_bs, drafts] places of the tokens that stay among those of all rows, then -1."""
    found = torch.full((len(paths), drafts), -1, dtype=torch.int32)
    for row, path in enumerate(paths):
        found[row, : len(path)] = torch.tensor(path) + row * drafts
    return found.to(device)


def _prepared(
    batch: Batch, scheduled: Any, accepted: dict[str, torch.Tensor], drafts: int
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """The steps whose states stay and are kept, by the kernel of releases that have it (sglang
    eagle_worker_common.py, `fused_commit_outputs`)."""
    kernels: Any = engine_module(KERNELS) if has_module(KERNELS) else None
    if not hasattr(kernels, "prepare_verify_commit_outputs") or scheduled.spec_info.topk > 1:
        return None
    tracks = scheduled.mamba_track_indices is not None
    grid = engine_module("sglang.srt.runtime_context").mamba_track_grid
    lens = scheduled.seq_lens
    _, _, steps, _ = kernels.prepare_verify_commit_outputs(
        engine_tensor(batch.predicted, lens.device).int(),
        accepted["accept_index"],
        accepted["accept_lens"],
        lens,
        num_draft_tokens=drafts,
        mamba_track_interval=grid(scheduled.tree_cache.page_size) if tracks else 0,
    )
    found: tuple[torch.Tensor, torch.Tensor | None] = steps
    return found
