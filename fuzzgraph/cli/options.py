"""Options that several verbs share, and how their values are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fuzzgraph import shipped
from fuzzgraph.errors import UsageError

if TYPE_CHECKING:
    from fuzzgraph.events import RunSummary

__all__ = [
    "Callback",
    "as_json",
    "case_argument",
    "case_folders",
    "duration",
    "one_of",
    "say_json",
    "say_summary",
    "setup_options",
    "whole_number",
    "with_options",
]

F = TypeVar("F", bound=Callable[..., Any])

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def duration(context: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Callback: a time such as 60s, 10m or 8h, as seconds."""
    from fuzzgraph.run_spec import parse_time

    return None if value is None else parse_time(value, param.opts[0])


def one_of(*words: str) -> Callback:
    """Callback: one of the given words, or nothing; the message lists them."""

    def check(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None and value not in words:
            raise UsageError(
                f"{param.opts[0]}={value!r} is unknown. Use one of: {', '.join(words)}."
            )
        return value

    return check


def whole_number(least: int) -> Callback:
    """Callback: a whole number that is not too small, or nothing."""

    def check(context: click.Context, param: click.Parameter, value: str | None) -> int | None:
        if value is None:
            return None
        text = str(value)
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise UsageError(
                f"{param.opts[0]}={text!r} is no whole number >= {least}. Use one, e.g. "
                f"{max(least, 3)}."
            )
        return int(text)

    return check


as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout.")
case_argument = click.argument("case", metavar="CASE")


def setup_options(
    command: F, *, here: bool = True, default_isolation: str = "", named: bool = True
) -> F:
    """Everything that a case is run on, as one `setup`.

    Args:
        here: whether it is run on this machine, which must have the device.
        named: whether `--target` names the target; else an argument `target` of the command does.
    """

    def gather(
        target: str,
        release: str,
        fault: str,
        device: str,
        graphs: str | None,
        strict_nan: bool,
        second_opinion: bool,
        stock_kernels: bool,
        isolation: str | None,
        **rest: Any,
    ) -> object:
        from fuzzgraph.open_target import checked_setup

        setup = checked_setup(
            target,
            release,
            fault,
            device,
            graphs or "",
            strict_nan=strict_nan,
            second_opinion=second_opinion,
            stock_kernels=stock_kernels,
            isolation=isolation or default_isolation,
            here=here,
        )
        return command(setup=setup, **rest)

    return with_options(gather, command, _SETUP_OPTIONS if named else _SETUP_OPTIONS[1:])


def with_options(
    gather: Callable[..., object], command: F, options: Sequence[Callable[[Any], Any]]
) -> F:
    """`gather`, which calls `command`, in its place: with the options of both, its own first."""
    gather.__name__ = command.__name__
    gather.__doc__ = command.__doc__
    gather.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = gather
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


_SETUP_OPTIONS = (
    click.option("--target", default="builtin", show_default=True, help="Engine under test."),
    click.option("--release", default="", help="Release of the engine, e.g. 0.5.12."),
    click.option("--fault", default="", help="Plant this fault in the built-in engine."),
    click.option(
        "--device",
        metavar="[cpu|cuda]",
        callback=one_of("cpu", "cuda"),
        default="cpu",
        show_default=True,
        help="cuda is HIP as well.",
    ),
    click.option(
        "--graphs",
        metavar="[recorder|device]",
        callback=one_of("recorder", "device"),
        help="What captures; default: device graphs on cuda, the recorder on cpu.",
    ),
    click.option(
        "--strict-nan",
        is_flag=True,
        help="Run each step also with NaN in memory that its batch does not own.",
    ),
    click.option(
        "--second-opinion",
        is_flag=True,
        help="Compute each step's truth by the Triton reference as well.",
    ),
    click.option(
        "--stock-kernels",
        is_flag=True,
        help="Run Triton kernels in Triton's own interpreter, slowly and unchecked.",
    ),
    click.option(
        "--isolation",
        metavar="[on|off]",
        callback=one_of("on", "off"),
        help="The engine in a process of its own; default: on for real engines, module:factory and "
        "cuda.",
    ),
)


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
