"""Planted bugs of drafts of several branches, each the change of one line of sglang."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.triton_draft import TritonDraftTarget
from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang.changed_lines import (
    changed_function,
    changed_method,
    replace_while_running,
)
from tests.targets.sglang.planted import with_changed_sessions

_HELPERS = "sglang.srt.speculative.spec_utils"
_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_LATER = "_select_top_k_tokens_later"


class _Chooses(TritonDraftTarget):
    """Chooses by a function with another line, which sessions look up when they are opened."""

    def __init__(self, line: str, other: str) -> None:
        super().__init__("sglang-triton-draft")
        self._lines = line, other

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Any:
        helpers: Any = engine_module(_HELPERS)
        changed = changed_function(getattr(helpers, _LATER).__wrapped__, *self._lines)
        with replaced_names([helpers], {_LATER: changed}):
            return super().open_session(config, graphs)


def _drafts(line: str, other: str) -> Any:
    """The target whose loop over steps has another line."""

    def change(session: Any) -> None:
        worker = engine_module(_WORKER).EagleDraftWorker
        changed = changed_method(worker, "draft_forward", line, other)
        replace_while_running(session, worker, "draft_forward", lambda _: changed)

    return with_changed_sessions(TritonDraftTarget("sglang-triton-draft"), change)


def hidden_states_stay_where_they_were() -> Any:
    """A chosen token goes on with the hidden state of the branch that had its place."""
    return _Chooses("hidden_states = hidden_states[selected_input_index]", "pass")


def hidden_states_of_the_first_row() -> Any:
    """Chosen tokens of all rows go on with hidden states of the first one."""
    line = "flat_cs // topk + batch_offsets.repeat_interleave(topk)"
    return _Chooses(line, "flat_cs // topk")


def scores_of_other_branches() -> Any:
    """Tokens are weighed by the score of the branch with their number among their own."""
    return _Chooses("scores.unsqueeze(2)", "scores.unsqueeze(1)")


def parents_of_the_step_behind() -> Any:
    """Places of those that were chosen are counted a step too far."""
    return _Chooses("(topk_sq * (i - 1) + topk)", "(topk_sq * i + topk)")


def tokens_of_the_first_places() -> Any:
    """Whichever tokens are best, the first ones go on."""
    line = "input_ids = torch.gather(topk_index, 1, topk_cs_index).flatten()"
    return _Chooses(line, "input_ids = topk_index[:, :topk].flatten()")


def keys_of_all_steps_lie_in_the_first_ones_slots() -> Any:
    """Each step writes its keys over those of the first."""
    return _drafts("out_cache_loc = out_cache_loc[i]", "out_cache_loc = out_cache_loc[0]")


def parents_without_the_first_step() -> Any:
    """Parents are handed out of all steps but the first, in place of all but the last."""

    def change(session: Any) -> None:
        module: Any = engine_module(_WORKER)
        given = module.organize_draft_results
        changed = changed_function(given, "parents_list[:-1]", "parents_list[1:]")
        replace_while_running(session, module, given.__name__, lambda _: changed)

    return with_changed_sessions(TritonDraftTarget("sglang-triton-draft"), change)
