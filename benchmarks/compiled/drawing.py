"""Runs drawn cases of a target with heads and dtypes of a device, and notes what they launch.

The history and all other dimensions of a case are the strategies'. Its head dims are those asked
for, where the target opens such a config, and its dtype is one that the target draws on a device.
Float16 stands in for bfloat16, of which the interpreter has no products, where both are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path

import msgspec
import torch

from compiled.launches import Notes, noting
from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.case.config_rules import validate_config
from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.execution import Execution
from fuzzgraph.faults import FAULTS, open_fault
from fuzzgraph.lanes import lanes
from fuzzgraph.ports import Target, load_engine, unwrapped
from fuzzgraph.run.spec import Setup
from fuzzgraph.strategies import CI, Profile, cases, draw
from fuzzgraph.targets import open_target
from fuzzgraph.worker.bytecode import import_engine_from

HEAD_DIMS = ((4, 4), (8, 8), (12, 12), (16, 8), (16, 16), (64, 64), (128, 128), (256, 256))
LATENT_DIMS = ((4, 3), (8, 7), (12, 11), (16, 15), (64, 63), (128, 127), (576, 512))
"""Width of a row, and of the value in it."""
HEADS = ((2, 2), (4, 2), (4, 1))
_SLOTS = 20000
"""Upper bound of the slots of a pool with a server's shapes, since lanes compute on a CPU."""
_SERVED_COLUMNS = 64
_EPOCHS = 12
"""Pools of configs that are drawn from there, for heads of each kind."""


def opened(name: str, path: Path | None) -> Target:
    """A target or planted fault, on the release that lies in a folder if one is given.

    This process has the release for its whole life.
    """
    if path is not None:
        import_engine_from([str(path)], Setup(target=name))
    target = open_fault(name) if name in FAULTS else open_target(name)
    load_engine(target)
    return target


@dataclass(frozen=True)
class Drawn:
    """What is drawn of a target on a device."""

    shapes: tuple[str, ...]
    """Widths of heads, e.g. "16x16"; () for any up to `widest`."""
    dtypes: tuple[str, ...]
    refused: str
    """Why the target is not driven there; "" if it is."""
    widest: int
    """Columns of a head."""

    def has(self, shape: str, floats: str) -> bool:
        """Whether a case there may launch a kernel with such heads and pointers to such floats."""
        of_bfloat16 = "bf16" in floats.split()
        dtypes = of_bfloat16 <= ("bfloat16" in self.dtypes)
        any_width = not self.shapes and max(map(int, shape.split("x"))) <= self.widest
        return not self.refused and dtypes and (any_width or shape in self.shapes)


def use_device_dtypes(target: Target, profile: Profile = CI) -> Drawn:
    """Have a target express what it can on a device, with any heads; of a profile with shapes of
    servers with the device's own.

    Returns:
        What is drawn there.
    """
    engine = unwrapped(target)
    here: Capabilities = engine.capabilities
    there: Capabilities = getattr(engine, "device_capabilities", here)
    refused = str(getattr(engine, "not_on_device", ""))
    interpreted = tuple(name for name in there.dtypes if name != "bfloat16") or there.dtypes
    if not refused:
        any_heads = () if profile.served else ("head_dims", "max_head_dim")
        heads = {name: getattr(here, name) for name in any_heads}
        engine.capabilities = there.replace(dtypes=interpreted, **heads)
    shapes = tuple(map(_name, there.built_heads))
    return Drawn(shapes, there.dtypes, refused, there.max_head_dim)


def _name(dims: tuple[int, int]) -> str:
    return f"{dims[0]}x{dims[1]}"


def noted(
    target: Target, count: int, seed: int, shapes: Sequence[str] = (), profile: Profile = CI
) -> Iterator[tuple[str, str, Notes]]:
    """Shape, what kept cases from running, and the launches of cases of that shape.

    Args:
        count: how many cases are drawn; each other shape is given to all of them.
        shapes: those that are run, e.g. "16x8"; () for all.
        profile: one with shapes of servers has them as they are drawn, as far as lanes run them in
            reasonable time.
    """
    drawn = _drawn(target, count, seed, profile)
    latent = set(target.capabilities.attentions) == {"mla"}
    dims = () if profile.served else LATENT_DIMS if latent else HEAD_DIMS
    given = [_shaped(target, drawn, each) for each in dims]
    by_shape: dict[str, list[Case]] = {}
    for case in [*drawn, *chain.from_iterable(given)]:
        by_shape.setdefault(_name((case.config.head_dim, case.config.v_head_dim)), []).append(case)
    ours = not getattr(target, "package", "")
    execution = Execution(target, Setup(target=target.name, second_opinion=ours))
    for shape in sorted(by_shape, key=lambda name: [*map(int, name.split("x"))]):
        if not shapes or shape in shapes:
            yield (shape, *_run(execution, by_shape[shape]))


def _drawn(target: Target, count: int, seed: int, profile: Profile) -> list[Case]:
    found: list[Case] = []

    def supports(config: EngineConfig) -> bool:
        return target.unsupported(config) is None

    def take(case: Case) -> None:
        config = case.config
        small = config.kv_pool_pages * config.page_size <= _SLOTS
        if not profile.served or (small and config.head_dim >= _SERVED_COLUMNS):
            found.append(case)

    for epoch in range(seed, seed + (_EPOCHS if profile.served else 1)):
        draw(cases(target.capabilities, profile.at(epoch), supports=supports), seed, count, take)
    return found[:count]


def _shaped(target: Target, drawn: list[Case], dims: tuple[int, int]) -> list[Case]:
    """The cases with these dims of their heads, where the target opens them.

    Heads and dtypes take turns, because few cases alone would leave some of them out.
    """
    found, can = [], target.capabilities
    kinds = [(heads, dtype) for heads in HEADS for dtype in can.dtypes]
    for number, case in enumerate(drawn):
        turned = kinds[number % len(kinds) :] + kinds[: number % len(kinds)]
        for heads, dtype in (*turned, ((), "")):
            changed = {"head_dim": dims[0], "v_head_dim": dims[1]}
            if heads:
                changed |= {"num_q_heads": heads[0], "num_kv_heads": heads[1], "dtype": dtype}
            config = msgspec.structs.replace(case.config, **changed)
            if _opens(target, config):
                found.append(msgspec.structs.replace(case, config=config))
                break
    return found


def _opens(target: Target, config: EngineConfig) -> bool:
    try:
        validate_config(config)
    except FuzzGraphError:
        return False
    return target.unsupported(config) is None


@contextmanager
def _own_kernels_as_compiled() -> Iterator[None]:
    """FuzzGraph's own kernels are launched in programs of the size that a device gets."""
    own = "fuzzgraph.targets.builtin.attention.triton_kernel", "fuzzgraph.reference.triton_eager"
    modules = list(map(import_module, own))
    for module in modules:
        vars(module).update(_INTERPRETED=False)
    vars(modules[1]).update(_device=lambda: torch.device("cpu"), nullcontext=lanes)
    try:
        yield
    finally:
        for module in modules:
            vars(module).update(_INTERPRETED=True)


def _run(execution: Execution, chosen: list[Case]) -> tuple[str, Notes]:
    notes, kept = Notes(), ""
    with noting(notes), _own_kernels_as_compiled():
        for case in chosen:
            try:
                verdict = execution.run_case(case)
            except FuzzGraphError as error:
                kept = kept or str(error).partition("\n")[0]
                continue
            stumbled = [each.message for each in verdict.findings if each.oracle == "survival"]
            kept = kept or verdict.skipped or (stumbled[0] if stumbled else "")
    return kept, notes
