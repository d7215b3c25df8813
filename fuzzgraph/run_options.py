"""From the options that were given to a checked `RunSpec`, and back to a command line."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from fuzzgraph.accesses import SanitizerTool
from fuzzgraph.errors import AdapterUnavailable, UsageError
from fuzzgraph.process.devices import way_out, why_no_device
from fuzzgraph.run.option import OptionRow
from fuzzgraph.run.settings_file import Settings
from fuzzgraph.run.spec import OPTIONS, SETUP_OPTIONS, Budget, RunSpec, Setup
from fuzzgraph.source_tree import package_of, with_tree
from fuzzgraph.targets import open_target
from fuzzgraph.targets.own import import_root
from fuzzgraph.targets.packages import distribution_of

_SECONDS = 60.0
"""How long a search without a budget runs."""


def checked_setup(target: str = "builtin", *, here: bool = True, **given: Any) -> Setup:
    """A setup whose parts fit together.

    Args:
        here: whether it is for this machine, which then must have the device.
        given: other fields of `Setup`; what is left out, '' or None follows from the rest.

    Raises:
        UsageError: parts that exclude each other; AdapterUnavailable: no such device here.
    """
    given = {name: value for name, value in given.items() if value not in ("", None)}
    setup = Setup(target=target, **given)
    for row in SETUP_OPTIONS:
        value = getattr(setup, row.name)
        if row.choices and value:
            row.parse(value, row.name)
        if row.name not in given and row.option.left_out:
            setup = msgspec.structs.replace(setup, **{row.name: row.when_left_out(setup)})
    if here and setup.device == "cuda":
        _require_device()
    _refuse_contradictions(setup)
    if here and setup.sanitizer:
        _require_sanitizer(setup.sanitizer)
    setup = _with_version_alone(setup)
    return with_tree(setup) if here else setup


def _with_version_alone(setup: Setup) -> Setup:
    """The setup with 0.5.12 where its release is written as pip writes it, sglang==0.5.12."""
    package, equals, version = setup.release.partition("==")
    if not equals:
        return setup
    driven = package_of(setup, open_target(setup.target))
    if package not in (driven, distribution_of(driven)):
        raise UsageError(
            f"release={setup.release!r}: target {setup.target!r} drives {driven}, not {package}. "
            f"Name a release of {driven}, or a target of {package}."
        )
    return msgspec.structs.replace(setup, release=version)


def _refuse_contradictions(setup: Setup) -> None:
    if setup.graphs == "device" and setup.device == "cpu":
        raise UsageError(
            "graphs='device' needs a GPU; got device='cpu'. "
            "Use --device cuda, or --graphs recorder."
        )
    if setup.graphs != "device" and setup.device == "cuda":
        raise UsageError(
            f"graphs={setup.graphs!r} sees no launch of a kernel that is compiled for a GPU; got "
            "device='cuda'. Use --graphs device, or --device cpu."
        )
    if setup.sanitizer and setup.graphs == "recorder":
        raise UsageError(
            f"sanitizer={setup.sanitizer!r} looks at kernels that are compiled for a GPU; got "
            "device='cpu'. Use --device cuda, or drop --sanitizer: over lanes each access is "
            "checked anyway."
        )
    if setup.fault and setup.target != "builtin":
        raise UsageError(
            f"fault={setup.fault!r} is planted in the built-in engine; got "
            f"target={setup.target!r}. Drop --fault, or use --target builtin."
        )
    if setup.release and setup.target == "builtin":
        raise UsageError(
            f"release={setup.release!r}: target 'builtin' has no releases. Drop --release, or name "
            "a target that has them (see 'fuzzgraph targets')."
        )

    if setup.source and setup.release:
        raise UsageError(
            f"source={setup.source!r}, release={setup.release!r}: name one of them, a tree or a "
            "release."
        )
    if setup.source and setup.target == "builtin":
        raise UsageError(
            f"source={setup.source!r}: target 'builtin' is FuzzGraph's own. Drop --source, or name "
            "a target of an engine (see 'fuzzgraph targets')."
        )
    if setup.tree and not setup.source:
        raise UsageError(
            f"tree={setup.tree!r} says what a source tree has to hold. Name the tree with --source."
        )


def _require_device() -> None:
    import torch

    if why := why_no_device():
        raise AdapterUnavailable(
            f"device='cuda': torch {torch.__version__} sees no CUDA or HIP device here: {why}. "
            f"{way_out(why)}"
        )


def _require_sanitizer(tool: SanitizerTool) -> None:
    from fuzzgraph.worker.sanitizer import require_tool

    require_tool(tool)


def checked_spec(
    given: Mapping[str, Any],
    *,
    dash: str = "--",
    here: bool = True,
    settings: Settings | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> RunSpec:
    """The run that options ask for; one without a seed gets a random one.

    Args:
        given: field -> value, as `OptionRow.parse` gives it; one that is missing or None was not
            given. Other names are passed over.
        dash: what the caller's options begin with, for messages.
        here: whether it runs on this machine, which then must have the device.
        settings: of the project's file, for what was not given.
        defaults: of the caller, for what is in neither.

    Raises:
        UsageError: options that exclude each other; AdapterUnavailable: no such device here.
    """
    with _blaming(settings, given):
        asked = settings.of_one_target(given) if settings else _said(given)
        spec = _checked_spec({**(defaults or {}), **asked}, dash, here)
    return msgspec.structs.replace(spec, settings=str(settings.path)) if settings else spec


def setup_of_project(given: Mapping[str, Any], settings: Settings | None) -> Setup:
    """The same for a setup alone.

    Raises:
        UsageError: as `checked_setup`.
    """
    with _blaming(settings, given):
        asked = settings.of_one_target(given) if settings else _said(given)
        return checked_setup(**_of(Setup, asked))


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def _blaming(settings: Settings | None, given: Mapping[str, Any]) -> Iterator[None]:
    """An error about options says which of them a file has given."""
    try:
        yield
    except UsageError as error:
        if settings is None:
            raise
        raise settings.blamed(error, given) from None


def _checked_spec(given: Mapping[str, Any], dash: str, here: bool) -> RunSpec:
    if given.get("only_new") and not given.get("baseline"):
        raise UsageError(
            f"{dash}only-new needs a baseline to be new against. Name it with {dash}baseline."
        )
    setup = checked_setup(here=here, **_of(Setup, given))
    budget = Budget(**_of(Budget, given))
    if budget.seconds is None and budget.examples is None:
        budget = msgspec.structs.replace(budget, seconds=_SECONDS)
    rest = {"seed": secrets.randbelow(1 << 31), **_of(RunSpec, given)}
    spec = RunSpec(setup=setup, budget=budget, **rest).with_profile_times()
    if spec.profile == "device" and setup.graphs == "recorder":
        raise UsageError(
            "profile='device' draws shapes of servers, for kernels that are compiled for a GPU; "
            "got device='cpu'. Use --device cuda, or --profile nightly."
        )
    return spec


def _of(record: type[msgspec.Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        row.name: given[row.name]
        for row in OPTIONS
        if row.record is record and given.get(row.name) is not None
    }


def option_words(
    record: Setup | RunSpec, rows: Iterable[OptionRow] = OPTIONS, dash: str = "--"
) -> list[str]:
    """The options that ask for a record again, as a command line gives them."""
    spec = RunSpec(setup=record) if isinstance(record, Setup) else record
    parts = {Setup: spec.setup, Budget: spec.budget, RunSpec: spec}
    return [word for row in rows for word in row.words(parts[row.record], dash)]


def replay_command(path: str, setup: Setup) -> str:
    """The command line that replays a case on the setup that showed the finding.

    It is for the current folder; a target of one's own that lies elsewhere is replayed there.
    """
    options = option_words(setup, SETUP_OPTIONS)
    root = import_root(setup.target)
    if not root or (root == os.getcwd() and not os.path.isabs(path)):
        return shlex.join(["fuzzgraph", "replay", path, *options])
    replay = shlex.join(["fuzzgraph", "replay", os.path.abspath(path), *options])
    return f"cd {shlex.quote(root)} && {replay}"


def option_table(rows: Iterable[OptionRow], dash: str = "--") -> str:
    """The rows as a Markdown table, as docs/cli.md has it."""
    lines = ["| option | meaning | default |", "|---|---|---|"]
    for row in rows:
        value = f" {row.metavar.replace('|', chr(92) + '|')}" if row.kind != "flag" else ""
        meaning = row.option.help.rstrip(".").replace("|", "\\|")
        lines.append(f"| `{dash}{row.word}`{value} | {meaning} | {_without(row)} |")
    return "\n".join(lines) + "\n"


def _without(row: OptionRow) -> str:
    if row.option.without:
        return row.option.without
    return "off" if row.kind == "flag" else f"`{row.default}`"
