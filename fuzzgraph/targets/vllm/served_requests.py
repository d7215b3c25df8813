"""What a scheduler tells the runner of each step, and what it has told it before.

The runner is handed a difference to the last step: requests that are new, that go on, that ended
or come back after they were preempted. Nothing of the batch is padded or ordered here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.world import Batch

_OUTPUT = "vllm.v1.core.sched.output"


class ServedRequests:
    """The requests that a runner knows.

    A request whose length is not one more than before counts as ended, and another one takes its
    place: a server's requests grow token by token.

    Args:
        sampled: engine's id -> tokens that the runner has sampled for it.
    """

    def __init__(self, sampled: Callable[[str], int]) -> None:
        self.known: dict[int, tuple[str, int, int]] = {}
        """Request -> engine's id, pages that the runner knows, tokens that it knows."""
        self.count = 0
        self._sampled = sampled

    def step(self, batch: Batch) -> tuple[Any, dict[str, int]]:
        """(what the scheduler hands over, engine's id -> row of the batch)."""
        module = engine_module(_OUTPUT)
        ended = {self.known.pop(name)[0] for name in batch.finished.tolist() if name in self.known}
        preempted = {self.known[n][0] for n in batch.preempted.tolist() if n in self.known}
        resumed = set(batch.resumed.tolist())
        new: list[Any] = []
        going: list[dict[str, Any]] = []
        rows: dict[str, int] = {}
        for row, request in enumerate(batch.requests.tolist()):
            length, pages = int(batch.seq_lens[row]), batch.pages.row(row).tolist()
            entry = self.known.get(request)
            if entry is not None and length != entry[2] + 1:
                ended.add(entry[0])
                entry = None
            if entry is None:
                name = f"{request}.{self.count}"
                self.count += 1
                new.append(_new_request(module, name, batch, row))
            else:
                name = entry[0]
                more = pages if request in resumed else pages[entry[1] :]
                going.append({
                    "req_ids": name,
                    "resumed": request in resumed,
                    "all_token_ids": batch.kv_tokens.row(row).tolist(),
                    "new_block_ids": (more,) if more else None,
                    "num_computed_tokens": length - 1,
                    "num_output_tokens": self._sampled(name),
                })  # fmt: skip
            self.known[request] = (name, len(pages), length)
            rows[name] = row
        out = module.SchedulerOutput.make_empty()
        out.scheduled_new_reqs = new
        out.scheduled_cached_reqs = _cached(module, going)
        out.num_scheduled_tokens = dict.fromkeys(rows, 1)
        out.total_num_scheduled_tokens = len(rows)
        out.finished_req_ids = ended
        out.preempted_req_ids = preempted - ended
        out.num_common_prefix_blocks = [0]
        return out, rows


def _new_request(module: Any, name: str, batch: Batch, row: int) -> Any:
    """A request of which all but the last token were computed before."""
    tokens = batch.kv_tokens.row(row).tolist()
    sampling = engine_module("vllm.sampling_params").SamplingParams(temperature=0.0)
    return call_with_known(
        module.NewRequestData,
        req_id=name,
        prompt_token_ids=tokens,
        prefill_token_ids=tokens,
        mm_features=[],
        sampling_params=sampling,
        pooling_params=None,
        block_ids=(batch.pages.row(row).tolist(),),
        num_computed_tokens=len(tokens) - 1,
        lora_request=None,
    )


def _cached(module: Any, going: list[dict[str, Any]]) -> Any:
    listed = ("req_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens")
    columns: Mapping[str, Any] = {name: [one[name] for one in going] for name in listed}
    return module.CachedRequestData(
        **columns,
        resumed_req_ids={one["req_ids"] for one in going if one["resumed"]},
        new_token_ids=[],  # with one pipeline rank the runner keeps what it sampled
        all_token_ids={one["req_ids"]: one["all_token_ids"] for one in going},
    )
