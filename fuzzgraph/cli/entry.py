"""Where the command starts and ends: its verbs, and what becomes of an error.

Exit codes: 0 nothing found, 1 findings, 2 the call was wrong (one line, no traceback), 3 the run
itself failed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

import fuzzgraph
from fuzzgraph.errors import FuzzGraphError, HarnessFailed, UsageError
from fuzzgraph.process.cache import cache_root
from fuzzgraph.process.torch_import import torch_problem
from fuzzgraph.text.escaping import visible

WRONG_CALL = 2
RUN_FAILED = 3

_VERBS = {
    "run": "fuzzgraph.cli.run:run",
    "resume": "fuzzgraph.cli.run:resume",
    "replay": "fuzzgraph.cli.cases:replay",
    "shrink": "fuzzgraph.cli.cases:shrink",
    "export": "fuzzgraph.cli.cases:export",
    "fleet": "fuzzgraph.cli.fleet:fleet",
    "report": "fuzzgraph.cli.report:report",
    "ledger": "fuzzgraph.cli.ledger:ledger",
    "baseline": "fuzzgraph.cli.baseline:baseline",
    "faults": "fuzzgraph.cli.faults:faults",
    "known-bugs": "fuzzgraph.cli.known_bugs:known_bugs",
    "mutants": "fuzzgraph.cli.mutants:mutants",
    "gate": "fuzzgraph.cli.gate:gate",
    "bisect": "fuzzgraph.cli.bisect:bisect",
    "corpus": "fuzzgraph.cli.corpus:corpus",
    "check-target": "fuzzgraph.cli.check_target:check_target",
    "settings": "fuzzgraph.cli.settings:settings",
    "targets": "fuzzgraph.cli.targets:targets",
    "releases": "fuzzgraph.cli.about:releases",
    "doctor": "fuzzgraph.cli.about:doctor",
    "schema": "fuzzgraph.cli.about:schema",
}
"""Verb -> where it lives. A verb is imported when it is called, so that `--help` stays quick."""


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _VERBS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            raise UsageError(f"verb={args[0]!r} is unknown. Use one of: {', '.join(_VERBS)}.")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(fuzzgraph.__version__, prog_name="fuzzgraph")
def root_command() -> None:
    """Fuzz captured GPU graphs of LLM serving engines.

    Exit codes: 0 nothing found, 1 findings, 2 the call was wrong, 3 the run itself failed.
    """


def run_command(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; what is wrong is said in one line."""
    stdout = sys.stdout
    try:
        code = root_command.main(list(arguments), prog_name="fuzzgraph", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return WRONG_CALL
    except click.ClickException as error:
        return _failed(arguments, "UsageError", _click_message(error), WRONG_CALL)
    except UsageError as error:
        return _failed(arguments, type(error).__name__, str(error), WRONG_CALL)
    except (KeyboardInterrupt, click.Abort):
        return _failed(arguments, "Interrupted", "interrupted before it was done.", RUN_FAILED)
    except BrokenPipeError:  # the reader of our output left, for example `| head`
        sys.stdout = None
        return RUN_FAILED
    except HarnessFailed as error:
        traceback.print_exc()
        return _failed(arguments, type(error).__name__, str(error), RUN_FAILED)
    except FuzzGraphError as error:
        return _failed(arguments, type(error).__name__, str(error), RUN_FAILED)
    except (ImportError, OSError) as error:
        problem = torch_problem()
        if problem is not None:
            return _failed(arguments, "AdapterUnavailable", str(problem), WRONG_CALL)
        return _crashed(arguments, error)
    except BaseException as error:  # an engine may call sys.exit: only a run at its end exits 0
        # Where the reader of our output left, click replaces the dead stream and exits.
        if isinstance(error, SystemExit) and sys.stdout is not stdout:
            return RUN_FAILED
        return _crashed(arguments, error)
    return code if isinstance(code, int) else 0


def _crashed(arguments: Sequence[str], error: BaseException) -> int:
    traceback.print_exception(error)
    return _failed(arguments, type(error).__name__, _first_line(error), RUN_FAILED)


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or "no message"


def _click_message(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    way_out = f"See '{context.command_path} --help'." if context else "See 'fuzzgraph --help'."
    return f"{message} {way_out}"


def _failed(arguments: Sequence[str], kind: str, message: str, code: int) -> int:
    message = visible(" ".join(message.split()))
    if "--json" in arguments:
        error = {"kind": kind, "message": message}
        click.echo(json.dumps({"error": error, "exit_code": code}, indent=2))
    click.echo(f"fuzzgraph: {kind}: {message}", err=True)
    return code


def main() -> NoReturn:
    """The console script."""
    # Hypothesis would keep what it works out about modules in the current folder: a checkout.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache_root() / "hypothesis"))
    sys.exit(run_command(sys.argv[1:]))
