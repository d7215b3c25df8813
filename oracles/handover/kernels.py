"""The kernels of one run by themselves: where arguments lie, which keys tokens see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from fuzzgraph.case import EngineConfig, attention_layers, group_configs
from fuzzgraph.finding import Stage
from fuzzgraph.handover import Attended, Handover
from fuzzgraph.observation import Observation, StepRecord
from fuzzgraph.oracles.handover.breach import Breach
from fuzzgraph.reference.geometry import queries_of
from fuzzgraph.reference.pooled_keys import selected_keys
from fuzzgraph.rules import handover as rules
from fuzzgraph.world import Batch


def kernel_breaches(step: StepRecord, seen: Observation, stage: Stage | None) -> Iterator[Breach]:
    launches = [each for each in seen.handovers if each.kind == "kernel"]
    for launch in launches:
        for argument, part in launch.tensors.items():
            name = f"{launch.to}.{argument}"
            for message in rules.lies_on_device(name, part.side):
                yield Breach("side", name, message, stage)
    yield from _key_breaches(step, seen, launches, stage)


def _key_breaches(
    step: StepRecord, seen: Observation, launches: list[Handover], stage: Stage | None
) -> Iterator[Breach]:
    """Keys of live tokens, by the batch; of padded ones, the reserved page."""
    layers = _own_keys(step)
    if layers is None:
        return
    attending = [each for each in launches if each.attended]
    by_token = _keys_in_parts(attending, seen) if seen.parts else _keys(attending, seen, step.batch)
    if not by_token:
        return  # part of what a token sees lies where no slot says whose it is
    told = _told(layers, by_token) if len(attending) < len(layers) else layers
    truth = [list(chain(*of_token)) for of_token in zip(*told, strict=True)]
    name = attending[0].to
    for token, want in enumerate(truth):
        if token in by_token:
            for message in rules.sees_own_keys(name, by_token[token], token=token, want=want):
                yield Breach("keys", name, message, stage)
                return
        else:
            yield Breach("keys", name, f"{name} computes nothing for token {token}", stage)
            return
    for token in sorted(by_token.keys() - set(range(len(truth)))):
        page_size = max(group.page_size for group in group_configs(step.config))
        facts = {"token": token, "page_size": page_size}
        for message in rules.padding_is_reserved(name, by_token[token], **facts):
            yield Breach("keys", name, message, stage)
            return


_Keys = list[list[int]]
"""Slots of keys, for each token."""


def _told(layers: list[_Keys], by_token: Mapping[int, list[int]]) -> list[_Keys]:
    """The layers with a key that some kernel says it sees.

    For fewer kernels than layers: one may attend by products of tensors, which say nothing of
    slots, and is then left to its outputs. Where no layer has such a key all are asked for.
    """
    seen = set(chain(*by_token.values()))
    told = [keys for keys in layers if not seen.isdisjoint(chain(*keys))]
    return told or layers


def _own_keys(step: StepRecord) -> list[_Keys] | None:
    """Slots that attention defines for each live token, by layer; None where it has others, or
    others for each head."""
    batch, config = step.batch, step.config
    # The forward of a draft extend may have tokens that the batch does not: those not accepted.
    told = batch.mode in ("decode", "target_verify", "prefill")
    if not told or config.max_encoder_len or not batch.raw_bs:
        return None
    if config.pooled_block and config.num_kv_heads > 1:  # each sees other keys, in its own cache
        return None
    # Each layer of a KV cache group sees its keys; of groups with one page size no slot is in two.
    groups = zip(batch.groups, group_configs(config), strict=True)
    keys = [_keys_in(seen, shape) for seen, shape in groups]
    return [keys[layer.group] for layer in attention_layers(config)]


def _keys_in(batch: Batch, config: EngineConfig) -> _Keys:
    """Slots of one KV cache group that attention defines for each live token."""
    queries = queries_of(batch, config)
    seen = selected_keys(batch, config)[:, 0] if config.pooled_block else queries.visible
    width = seen.shape[1]
    return [
        batch.kv_slots.row(row)[visible[: len(batch.kv_slots.row(row))]].tolist() if width else []
        for row, visible in zip(queries.rows, seen, strict=True)
    ]


def _keys(launches: list[Handover], seen: Observation, batch: Batch) -> dict[int, list[int]]:
    """Slots that each token sees; none where a launch does not tell them."""
    sizes = (seen.padded_tokens, batch.num_tokens)
    told = all(_tells_keys(each, sizes) for each in launches)
    return _keys_by_token(launches) if told else {}


def _keys_in_parts(launches: list[Handover], seen: Observation) -> dict[int, list[int]]:
    """The same where a model computes a batch in parts: each part has as many of the launches, one
    behind the other. What a part is given beyond its tokens counts behind those of the batch."""
    parts = [part for part in seen.parts if part.padded_tokens]
    each, rest = divmod(len(launches), max(1, len(parts)))
    if rest:
        return {}
    found: dict[int, list[int]] = {}
    for number, part in enumerate(parts):
        own = launches[number * each : (number + 1) * each]
        if not all(_tells_keys(launch, (part.padded_tokens,)) for launch in own):
            return {}
        for token, keys in _keys_by_token(own).items():
            beyond = token - part.tokens
            at = part.first_token + token if beyond < 0 else seen.padded_tokens + beyond
            found.setdefault(at, []).extend(keys)
    return found


def _tells_keys(launch: Handover, sizes: Sequence[int]) -> bool:
    """Whether a launch says for each token that it is given, by its number, which slots it sees."""
    return all(each.place == "slot" and each.queries in sizes for each in launch.attended)


def _keys_by_token(launches: Iterable[Handover]) -> dict[int, list[int]]:
    """Slots that each token sees, over all launches."""
    found: dict[int, list[int]] = {}
    for launch in launches:
        for token, keys in seen_keys(launch.attended):
            found.setdefault(token, []).extend(keys)
    return found


def seen_keys(attended: Iterable[Attended]) -> Iterator[tuple[int, list[int]]]:
    for each in attended:
        for row in each.rows:
            for at in range(row.tokens):
                keys = row.keys if row.hidden is None else row.keys[~row.hidden[at]]
                yield row.first + at, keys.tolist()
