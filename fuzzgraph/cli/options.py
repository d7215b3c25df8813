"""Options of the verbs: those of a run from the table in `run.spec`, and a few that verbs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fuzzgraph import shipped
from fuzzgraph.errors import UsageError
from fuzzgraph.run.option import OptionRow, parse_number, parse_time
from fuzzgraph.run.spec import OPTIONS, SETUP_OPTIONS
from fuzzgraph.text.escaping import visible

if TYPE_CHECKING:
    from fuzzgraph.run.events import RunSummary
    from fuzzgraph.run.spec import RunSpec, Setup

F = TypeVar("F", bound=Callable[..., Any])

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def _parsed(parse: Callable[[str, str], Any]) -> Callback:
    """Callback: the value of a text, or None where there is none."""

    def check(context: click.Context, param: click.Parameter, value: str | None) -> Any:
        return None if value is None else parse(str(value), param.opts[0])

    return check


duration = _parsed(parse_time)
"""Callback: a time such as 60s, 10m or 8h, as seconds."""


def whole_number(least: int) -> Callback:
    """Callback: a whole number that is not too small, or nothing."""
    return _parsed(lambda text, where: parse_number(text, where, least))


def one_of(*words: str) -> Callback:
    """Callback: one of the given words, or nothing; the message lists them."""

    def parse(text: str, where: str) -> str:
        if text not in words:
            raise UsageError(f"{where}={text!r} is unknown. Use one of: {', '.join(words)}.")
        return text

    return _parsed(parse)


as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout.")
case_argument = click.argument("case", metavar="CASE")


def option_of(row: OptionRow, **changes: Any) -> Callable[[F], F]:
    """A row of the table as an option of click; its value is None where it is not given.

    Args:
        changes: what this verb says otherwise, as `click.option` takes it, e.g. `help`.
    """
    words: dict[str, Any] = {"help": row.option.help, "default": None}
    if row.kind == "flag":
        words["is_flag"] = True
    else:
        words |= {"metavar": row.metavar, "callback": _parsed(row.parse)}
        words["help"] += f"  [default: {row.option.without or row.default}]"
    return click.option(row.flag, row.name, **(words | changes))


def _rows(*names: str) -> list[OptionRow]:
    return [row for row in OPTIONS if row.name in names]


new_budget = option_of(*_rows("seconds"), help="A new budget in all, what is spent included.")
"""For verbs that resume."""


no_settings = click.option(
    "--no-settings",
    is_flag=True,
    help="Pass over fuzzgraph.toml and [tool.fuzzgraph] of pyproject.toml.",
)


def setup_options(command: F, *, leave: tuple[str, ...] = ()) -> F:
    """Everything that a case is run on, as one `setup`.

    Args:
        leave: fields for which the command has an argument of its own.
    """

    def build(given: Mapping[str, Any]) -> Setup:
        from fuzzgraph.run_options import checked_setup

        return checked_setup(**{name: value for name, value in given.items() if value is not None})

    rows = [row for row in SETUP_OPTIONS if row.name not in leave]
    return _taking(command, "setup", {row.name for row in SETUP_OPTIONS}, rows, build)


def case_options(command: F) -> F:
    """The same for the verbs that take a saved case, with the project's settings where the call
    names no target.

    A call that names its target says all of the setup: a replay command that was printed for a
    finding means the same in every folder.
    """

    def build(given: Mapping[str, Any]) -> Setup:
        from fuzzgraph.run.settings_file import find_settings
        from fuzzgraph.run_options import setup_of_project

        apart = given["no_settings"] or given["target"] is not None
        settings = None if apart else find_settings(given["source"] or "")
        if settings is not None:
            click.echo(f"fuzzgraph: {visible(settings.words)}", err=True)
        return setup_of_project(_without_switch(given), settings)

    fields = {row.name for row in SETUP_OPTIONS} | {"no_settings"}
    return _taking(no_settings(command), "setup", fields, SETUP_OPTIONS, build)


def _without_switch(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "no_settings"}


def spec_options(command: F, *, verb: str, here: bool = True, **defaults: str) -> F:
    """Everything that a run is asked, as one `spec`.

    Args:
        verb: which of the verbs that run a search.
        here: whether it runs on this machine, which then must have the device.
        defaults: field -> what this verb takes where the option is not given.
    """

    def build(given: Mapping[str, Any]) -> RunSpec:
        from fuzzgraph.run.settings_file import find_settings
        from fuzzgraph.run_options import checked_spec

        settings = None if given["no_settings"] else find_settings(given["source"] or "")
        return checked_spec(_without_switch(given), here=here, settings=settings, defaults=defaults)

    rows = [row for row in OPTIONS if verb in (row.option.verbs or (verb,))]
    fields = {row.name for row in rows} | {"no_settings"}
    return _taking(no_settings(command), "spec", fields, rows, build, defaults)


def trusted_options(command: F) -> F:
    """What a resumed run's log may not decide by itself, as `trusted`."""

    def build(given: Mapping[str, Any]) -> object:
        from fuzzgraph.campaign.resume import Trusted

        return Trusted(**given)

    rows = _rows("target", "database")
    helps = {
        "target": "As before; a module:factory has to be named again.",
        "database": "As before; it has to be named again.",
    }
    decorated = _taking(command, "trusted", set(helps), [], build)
    for row in reversed(rows):
        decorated = option_of(row, help=helps[row.name])(decorated)
    return decorated


def _taking(
    command: F,
    name: str,
    fields: set[str],
    rows: Iterable[OptionRow],
    build: Callable[[Mapping[str, Any]], object],
    defaults: Mapping[str, str] | None = None,
) -> F:
    """The command with the options of some rows; what they give is built into one parameter."""

    def gather(**given: Any) -> object:
        record = build({field: given.pop(field) for field in fields & given.keys()})
        return command(**{name: record}, **given)

    gather.__name__ = command.__name__
    gather.__doc__ = command.__doc__
    gather.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = gather
    for row in reversed(list(rows)):
        default = (defaults or {}).get(row.name)
        changes = {"help": f"{row.option.help}  [default: {default}]"} if default else {}
        decorated = option_of(row, **changes)(decorated)
    return decorated  # type: ignore[no-any-return]


def case_folders() -> list[Path]:
    """Folders in which a digest is looked up: saved cases, then runs, newest first."""
    runs = sorted(Path("reports/runs").glob("*/corpus"), reverse=True)
    return [*shipped.case_folders(), Path("corpus"), *runs]


def say_json(value: object) -> None:
    """Print a record as indented JSON."""
    from fuzzgraph.reporting import as_json as text_of

    click.echo(text_of(value))


def say_summary(summary: RunSummary, *, as_json: bool) -> int:
    """Print what a run came to; its exit code."""
    from fuzzgraph.reporting import run_text

    if as_json:
        say_json(summary)
    else:
        click.echo("\n" + run_text(summary))
    return summary.exit_code
