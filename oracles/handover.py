"""Clause "metadata and capture tell the truth": of all that is handed over, declared or not.

What a runner handed its backend and a backend its kernels is held against the same step without a
graph, against what the graph was captured with, and, where a kernel's model says what it means,
against the batch itself. A name is judged by nothing but what it shows; a target can only excuse
one, with a source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fuzzgraph.finding import Clause, Finding, Stage, Symptom
from fuzzgraph.handover import Attended, Excuse, Handover, HandoverRule, Ints, Part
from fuzzgraph.observation import Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import claim
from fuzzgraph.reference.geometry import queries_of
from fuzzgraph.rules import handover as rules
from fuzzgraph.world import Batch


class Breach(NamedTuple):
    """One rule that one name breaks."""

    rule: HandoverRule
    name: str
    message: str
    stage: Stage | None = None
    address: int = 0
    """Of the tensor that is wrong; 0 where the breach is of another kind."""


def _is_effect(breach: Breach) -> bool:
    """Whether it tells what a kernel as a whole does, and not which argument is wrong."""
    return breach.rule == "keys" or (breach.rule == "meaning" and "." not in breach.name)


def _argument_of(kernel: str, told: set[str]) -> bool:
    return any(name.startswith(f"{kernel}.") for name in told)


class Handovers:
    """Live parts mean the same in replay and eager run; sizes, addresses and sides hold."""

    name = "handover"
    clause: Clause = "metadata"
    needs: frozenset[RunKind] = frozenset({"replay", "eager"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        found = [breach for breach in breaches(step) if not excused(step, breach)]
        told: set[str] = set()
        memory: set[int] = set()
        strayed = {access.kernel for access in step.accesses}
        for breach in sorted(found, key=_is_effect):
            # One name for one thing: a kernel's wrong argument comes from the metadata, and what
            # the kernel then reads is its effect.
            known = breach.name in told or breach.address in memory
            if known or (
                _is_effect(breach) and (breach.name in strayed or _argument_of(breach.name, told))
            ):
                continue
            told.add(breach.name)
            memory |= {breach.address} - {0}
            yield self._finding(step, breach)

    def _finding(self, step: StepRecord, breach: Breach) -> Finding:
        symptom: Symptom = "missing" if breach.rule == "missing" else "broken_contract"
        return claim(
            step, self.name, self.clause, buffer=breach.name, symptom=symptom,
            message=breach.message, stage=breach.stage, rule=breach.rule,
        )  # fmt: skip


def excused(step: StepRecord, breach: Breach) -> bool:
    """Whether the target excuses it."""
    return any(excuse.covers(breach.name, breach.rule) for excuse in step.excuses)


def excuses_needed(step: StepRecord) -> list[Excuse]:
    """The target's excuses without which the step had findings."""
    found = list(breaches(step)) if step.excuses else []
    return [
        excuse
        for excuse in step.excuses
        if any(excuse.covers(breach.name, breach.rule) for breach in found)
    ]


def breaches(step: StepRecord) -> Iterator[Breach]:
    """Every rule that is broken, excused or not, the most telling first."""
    replay, eager = step.runs.get("replay"), step.runs.get("eager")
    if replay is None:
        return
    stage: Stage | None = None
    for run, seen in (("replay", replay), ("eager", eager)):
        if seen is not None:
            stage = "eager" if run == "eager" else None
            yield from _kernel_breaches(step, seen, stage)
    if step.batch.via == "graph" and not replay.declined:
        yield from _against_capture(replay)
        if eager is not None:
            yield from _fields_shown(_Pair(step, replay, eager, "the eager run"))
        if eager is not None and eager.handovers:
            yield from _against(_Pair(step, replay, eager, "the eager run"))
            # The same graph without the past and in another world: two replays do not tell which
            # entries are live, an eager run does.
            screen = step.runs.get("screen")
            if screen is not None and screen.handovers:
                yield from _against(_Pair(step, screen, eager, "the eager run with its past"))


# ---- kernels, each run by itself


def _kernel_breaches(step: StepRecord, seen: Observation, stage: Stage | None) -> Iterator[Breach]:
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
    truth = _own_keys(step)
    if truth is None:
        return
    known = [each for each in launches if _tells_keys(each, seen, step.batch)]
    if not known or len(known) < sum(bool(each.attended) for each in launches):
        return  # part of what a token sees lies where no slot says whose it is
    by_token = _keys_by_token(known)
    name = known[0].to
    for token, want in enumerate(truth):
        if token in by_token:
            for message in rules.sees_own_keys(name, by_token[token], token=token, want=want):
                yield Breach("keys", name, message, stage)
                return
        else:
            yield Breach("keys", name, f"{name} computes nothing for token {token}", stage)
            return
    for token in sorted(by_token.keys() - set(range(len(truth)))):
        facts = {"token": token, "page_size": step.config.page_size}
        for message in rules.padding_is_reserved(name, by_token[token], **facts):
            yield Breach("keys", name, message, stage)
            return


def _own_keys(step: StepRecord) -> list[list[int]] | None:
    """Slots that attention defines for each live token; None where it has others besides."""
    batch, config = step.batch, step.config
    # The forward of a draft extend may have tokens that the batch does not: those not accepted.
    told = batch.mode in ("decode", "target_verify", "prefill")
    if not told or config.max_encoder_len or not batch.raw_bs:
        return None
    queries = queries_of(batch, config)
    width = queries.visible.shape[1]
    return [
        batch.kv_slots.row(row)[visible[: len(batch.kv_slots.row(row))]].tolist() if width else []
        for row, visible in zip(queries.rows, queries.visible, strict=True)
    ]


def _tells_keys(launch: Handover, seen: Observation, batch: Batch) -> bool:
    """Whether a launch says for each token of the batch, by its number, which slots it sees."""
    sizes = (seen.padded_tokens, batch.num_tokens)
    return bool(launch.attended) and all(
        each.place == "slot" and each.queries in sizes for each in launch.attended
    )


def _keys_by_token(launches: Iterable[Handover]) -> dict[int, list[int]]:
    """Slots that each token sees, over all launches."""
    found: dict[int, list[int]] = {}
    for launch in launches:
        for token, keys in _seen_keys(launch.attended):
            found.setdefault(token, []).extend(keys)
    return found


def _seen_keys(attended: Iterable[Attended]) -> Iterator[tuple[int, list[int]]]:
    for each in attended:
        for row in each.rows:
            for at in range(row.tokens):
                keys = row.keys if row.hidden is None else row.keys[~row.hidden[at]]
                yield row.first + at, keys.tolist()


# ---- a replay against the capture of its graph


def _against_capture(replay: Observation) -> Iterator[Breach]:
    held = _held(replay)
    for path, captured in held.bound.items():
        if path.partition(".")[0] not in held.types:
            continue  # the batch of the capture is gone; its buffers are judged by their content
        name = f"{held.to}.{path}"
        if path in held.rebound:
            for message in rules.keeps_address(name, held.rebound[path], captured=captured):
                yield Breach("address", name, message)
    # A record without a tensor, of a feature that this batch does not use, is no loss.
    used = {path.partition(".")[0] for path in held.bound}
    for root in used.intersection(held.dropped):
        for message in rules.is_there(f"{held.to}.{root}", False, other="its capture"):
            yield Breach("missing", f"{held.to}.{root}", message)
    then, now = _calls(replay.handed_at_capture), _calls(replay.handovers)
    padded = {replay.padded_bs, replay.padded_bs + 1, replay.padded_tokens}
    sizes = tuple(padded - {1})
    for path, parts in now.items():
        # Engines have several methods for one thing; the argument's name is what they share.
        known = then.get(path)
        if known is None:
            continue
        for to, part in parts:
            shapes = [other.shape for _, other in known if len(other.shape) == len(part.shape)]
            if shapes and part.shape not in shapes:
                for message in rules.has_captured_size(
                    f"{to}.{path}", part.shape, captured=shapes[-1], sizes=sizes
                ):
                    yield Breach("form", f"{to}.{path}", message)
    yield from _announced(replay)


def _announced(replay: Observation) -> Iterator[Breach]:
    """Numbers that were the graph's size at capture."""
    then = _scalars(replay.handed_at_capture)
    sizes = {replay.padded_bs: replay.raw_bs, replay.padded_tokens: replay.num_tokens}
    for path, (to, value) in _scalars(replay.handovers).items():
        captured = then.get(path, ("", 0))[1]
        if captured not in sizes or _may_be_content(value, replay):
            continue
        facts = {"captured": captured, "raw": sizes[captured]}
        for message in rules.says_captured_size(f"{to}.{path}", value, **facts):
            yield Breach("form", f"{to}.{path}", message)


def _may_be_content(value: int, replay: Observation) -> bool:
    """Whether a number is also the sum or the largest of something that was handed over."""
    if value not in (replay.raw_bs, replay.num_tokens):
        return False
    contents = [
        part.values
        for parts in _calls(replay.handovers).values()
        for _, part in parts
        if part.values is not None and part.values.size
    ]
    return any(value in (int(each.sum()), int(each.max())) for each in contents)


# ---- a replay against another run of the same step


class _Pair(NamedTuple):
    """A replay and what it is held against."""

    step: StepRecord
    replay: Observation
    other: Observation
    called: str
    """What a message calls the other run."""


def _against(pair: _Pair) -> Iterator[Breach]:
    yield from _launches_match(pair)
    yield from _held_match(pair)
    yield from _calls_match(pair)


def _fields_shown(pair: _Pair) -> Iterator[Breach]:
    """A declared field that the other run shows is there; whose metadata it is stands before it."""
    holder = _held(pair.replay).to
    for name in pair.other.metadata.keys() - pair.replay.metadata.keys():
        yield from _missing(f"{holder}.{name}" if holder else name, pair)


def _launches_match(pair: _Pair) -> Iterator[Breach]:
    matched, missing = _matched(pair)
    for name in missing:
        yield from _missing(name, pair)
    for one, two in matched:
        yield from _same_meaning(one, two, pair)
        for argument, part in two.tensors.items():
            name = f"{one.to}.{argument}"
            if argument not in one.tensors:
                yield from _missing(name, pair)
            else:
                yield from _same_part(name, one.tensors[argument], part, pair)
        for argument, want in two.scalars.items():
            got = one.scalars.get(argument)
            yield from _same_scalar(f"{one.to}.{argument}", got, want, pair)


def _missing(name: str, pair: _Pair) -> Iterator[Breach]:
    for message in rules.is_there(name, False, other=pair.called):
        yield Breach("missing", name, message)


def _matched(pair: _Pair) -> tuple[list[tuple[Handover, Handover]], list[str]]:
    """Launches of one kernel in their order, and kernels of which the replay has fewer."""
    ours, theirs = _by_kernel(pair.replay), _by_kernel(pair.other)
    matched, missing = [], []
    for kernel, launches in theirs.items():
        got = ours.get(kernel, [])
        matched += list(zip(got, launches, strict=False))
        if len(got) < len(launches):
            missing.append(kernel)
    return matched, missing


def _by_kernel(seen: Observation) -> dict[str, list[Handover]]:
    found: dict[str, list[Handover]] = {}
    for each in seen.handovers:
        if each.kind == "kernel":
            found.setdefault(each.to, []).append(each)
    return found


def _same_meaning(replay: Handover, other: Handover, pair: _Pair) -> Iterator[Breach]:
    """Each live token of the launch sees the same keys, with the same scale."""
    name = replay.to
    for one, two in zip(replay.attended, other.attended, strict=False):
        factors = [(each.scale, each.softcap) for each in (one, two)]
        for message in rules.says_the_same(
            f"{name}'s scale and cap", factors[0], want=factors[1], other=pair.called
        ):
            yield Breach("meaning", name, message)
        if one.place != two.place:
            continue
        ours, theirs = dict(_seen_keys([one])), dict(_seen_keys([two]))
        for token in range(min(pair.replay.num_tokens, len(theirs))):
            got, want = ours.get(token, []), theirs.get(token, [])
            for message in rules.sees_the_same_keys(
                name, got, token=token, want=want, other=pair.called
            ):
                yield Breach("meaning", name, message)
                return


def _same_scalar(name: str, got: object, want: object, pair: _Pair) -> Iterator[Breach]:
    """Numbers of a size are large enough; what says how to compute is the same."""
    if type(want) is not int:
        found = rules.says_the_same(name, got, want=want, other=pair.called)
    elif type(got) is int:
        found = rules.fits(name, got, want=want, other=pair.called)
    else:
        return
    for message in found:
        yield Breach("fits", name, message)


def _held_match(pair: _Pair) -> Iterator[Breach]:
    one, two = _held(pair.replay), _held(pair.other)
    for path, kind in two.types.items():
        name = f"{one.to}.{path}"
        if path not in one.types:
            yield from _missing(name, pair)
        else:
            for message in rules.says_the_same(name, one.types[path], want=kind, other=pair.called):
                yield Breach("missing", name, message)
    for path, part in two.tensors.items():
        name = f"{one.to}.{path}"
        if path.partition(".")[0] not in one.types:
            continue  # the record itself is missing
        if path not in one.tensors:
            yield from _missing(name, pair)
        else:
            yield from _same_part(name, one.tensors[path], part, pair)
            yield from _graph_size(name, one.tensors[path], part, pair)
    for path in one.tensors.keys() - two.tensors.keys():
        if path.rpartition(".")[0] in two.types:
            name = f"{one.to}.{path}"
            message = f"{name} is missing in {pair.called}; the graph step has it"
            yield Breach("missing", name, message, "eager")


def _graph_size(name: str, got: Part, want: Part, pair: _Pair) -> Iterator[Breach]:
    """Offsets of rows in metadata are one more than the graph's rows."""
    if want.values is None or want.shape != (pair.other.padded_bs + 1,) or len(got.shape) != 1:
        return
    entries = want.values.tolist()
    if entries[0] or np.diff(entries).tolist() not in _row_counts(pair.step):
        return
    facts = {"padded": pair.replay.padded_bs + 1, "live": len(entries)}
    for message in rules.has_graph_size(name, got.shape[0], **facts, other=pair.called):
        yield Breach("form", name, message)


def _calls_match(pair: _Pair) -> Iterator[Breach]:
    """What the runner hands over for a replay, and what the graph was captured with, by leaf."""
    wanted = {_leaf(path): parts[0][1] for path, parts in _calls(pair.other.handovers).items()}
    for path, parts in _calls(pair.replay.handovers).items():
        if (want := wanted.get(_leaf(path))) is not None:
            for to, part in parts:
                yield from _same_part(f"{to}.{path}", part, want, pair)
    held = _held(pair.replay)
    for path, part in held.tensors.items():
        root = path.partition(".")[0]
        if root not in held.types and (want := wanted.get(_leaf(path))) is not None:
            yield from _same_part(f"{held.to}.{path}", part, want, pair)


# ---- one tensor of both runs


def _same_part(name: str, got: Part, want: Part, pair: _Pair) -> Iterator[Breach]:
    """Live entries of a tensor, where its shape says which ones they are."""
    if got.values is None or want.values is None or not want.values.size:
        return
    live = _live(got.shape, want.shape, pair)
    if live is None or not live.entries:
        return
    one, two = got.values, want.values
    if live.axis:  # [few, tokens]: positions of several dimensions
        one, two = one.T, two.T
    if live.table:
        one, two = _below_lengths(pair.step, one, two, live.entries)
    for message in rules.live_entries_match(name, one, two, live=live.entries, other=pair.called):
        yield Breach("live", name, message, address=got.address)
        return
    yield from _stays_meaning(name, one, two, live, pair)


@dataclass(frozen=True, slots=True)
class _Live:
    """Which entries of a tensor are live."""

    entries: int
    axis: int = 0
    table: bool = False


def _live(got: tuple[int, ...], want: tuple[int, ...], pair: _Pair) -> _Live | None:
    """The live entries of a tensor, from the sizes of both runs; None where sizes do not tell.

    An entry per row or token, or one more than that: the eager run has no others.
    """
    if len(got) != len(want) or len(got) not in (1, 2):
        return None
    one, two = pair.replay, pair.other
    rows = one.raw_bs, one.padded_bs, two.padded_bs
    tokens = one.num_tokens, one.padded_tokens, two.padded_tokens
    for axis in {0, len(want) - 1}:
        if axis and want[0] != got[0]:
            continue
        for live, padded, theirs in (rows, tokens):
            for extra in (0, 1):
                # One entry may be a number for the whole batch.
                size = padded + extra if live + extra == 1 else live + extra
                if want[axis] == theirs + extra and got[axis] >= size:
                    return _Live(live + extra, axis, table=len(want) == 2 and not axis)
    return None


def _below_lengths(step: StepRecord, got: Ints, want: Ints, live: int) -> tuple[Ints, Ints]:
    """Tables with what lies beyond each row's keys blanked: there they may hold anything."""
    batch = step.batch
    width = min(got.shape[1], want.shape[1])
    one, two = got[:live, :width].copy(), want[:live, :width].copy()
    # A tree's own tokens may be in a table of their own, behind that of the past.
    tree = batch.tree_parents is not None and step.config.spec_topk > 1
    lens = batch.cached_lens if tree else batch.seq_lens
    lens = lens if live == batch.raw_bs else lens[batch.token_rows]
    # A table of pages at least; of a table of slots only the first ones are then compared.
    used = -(-lens // step.config.page_size)
    if len(used) != live:
        return one, two
    beyond = np.arange(width) >= used[:, None]
    one[beyond] = two[beyond] = 0
    return one, two


def _stays_meaning(name: str, got: Ints, want: Ints, live: _Live, pair: _Pair) -> Iterator[Breach]:
    """What the batch shows to be offsets or lengths of rows is such for padded rows as well."""
    if got.ndim != 1 or live.axis:
        return
    replay, batch = pair.replay, pair.step.batch
    entries = want[: live.entries].tolist()
    # A list of tokens, such as positions, may begin as offsets do; it has another length.
    listed = len(got) in (replay.padded_bs, replay.padded_tokens)
    if live.entries == replay.raw_bs + 1 and not listed:
        if entries[0] == 0 and np.diff(entries).tolist() in _row_counts(pair.step):
            for message in rules.ascends(name, got[: replay.padded_bs + 1].tolist()):
                yield Breach("meaning", name, message)
    elif live.entries == batch.raw_bs and entries in _row_counts(pair.step):
        for message in rules.stays_counts(name, got[: replay.padded_bs].tolist()):
            yield Breach("meaning", name, message)


def _row_counts(step: StepRecord) -> list[list[int]]:
    """What is counted for each row of a batch: keys, new tokens, the past, pages."""
    batch, page = step.batch, step.config.page_size
    counts = (batch.seq_lens, batch.new_lens, batch.cached_lens)
    pages = [-(-lens // page) for lens in counts]
    return [each.tolist() for each in (*counts, *pages)]


# ---- looking things up


def _held(seen: Observation) -> Handover:
    found = [each for each in seen.handovers if each.kind == "held"]
    return found[-1] if found else Handover("", "held")


def _calls(handovers: Iterable[Handover]) -> Mapping[str, list[tuple[str, Part]]]:
    """Path -> (method, tensor) of each call that handed it over, in order."""
    found: dict[str, list[tuple[str, Part]]] = {}
    for each in handovers:
        if each.kind == "call":
            for path, part in each.tensors.items():
                found.setdefault(path, []).append((each.to, part))
    return found


def _scalars(handovers: Iterable[Handover]) -> dict[str, tuple[str, int]]:
    """Path -> (method, number) of the last call that handed it over; booleans are no numbers."""
    return {
        path: (each.to, value)
        for each in handovers
        if each.kind == "call"
        for path, value in each.scalars.items()
        if type(value) is int
    }


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]
