"""Targets of one's own, named as module:factory, e.g. `my_package.targets:MyTarget`."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.errors import FuzzGraphError, UsageError

if TYPE_CHECKING:
    from fuzzgraph.ports import Target  # needs torch, the names of targets do not

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_NAME = re.compile(f"{_DOTTED}:{_DOTTED}")
_INSTALLED = tuple(
    str(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)


def is_own(name: str) -> bool:
    """Whether a target's name says where to import it from."""
    return ":" in name


def check_own_name(name: str) -> None:
    """Refuse what cannot be module:factory, without importing anything.

    Raises:
        UsageError: the name has another form.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"target={name!r} is not module:factory. Write the dotted name of a module and of what "
            "makes the target in it, e.g. my_package.targets:MyTarget, or use a known name (see "
            "'fuzzgraph targets')."
        )


def open_own(name: str) -> Target:
    """The target that module:factory makes; the module may lie in this folder.

    Raises:
        UsageError: it cannot be imported or made, or it is not a target.
    """
    check_own_name(name)
    see_current_folder()
    module, _, factory = name.partition(":")
    try:
        made = reduce(getattr, factory.split("."), import_module(module))()  # type: ignore[operator]
        _require_target(name, made)
    except FuzzGraphError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"target={name!r} cannot be opened ({said}). Write module:factory of a target, both "
            "importable here, or use a known name (see 'fuzzgraph targets')."
        ) from error
    return cast("Target", made)


def _require_target(name: str, made: object) -> None:
    from fuzzgraph.ports import Target
    from fuzzgraph.targets.protocol import GUIDE, lacks

    wrong = lacks(made, Target)
    if not wrong and not isinstance(getattr(made, "capabilities", None), Capabilities):
        wrong = ["has capabilities that are not a fuzzgraph.capabilities.Capabilities"]
    if wrong:
        raise UsageError(
            f"target={name!r} gives a {type(made).__name__}, which is not a target: it "
            f"{'; '.join(wrong)}; {GUIDE}."
        )


def import_root(name: str) -> str:
    """The folder from which Python imports the module of module:factory, absolute.

    Nothing is imported. It is '' for a known name, and for a module that is installed or missing.
    """
    see_current_folder()
    try:
        spec = find_spec(name.partition(":")[0].partition(".")[0]) if is_own(name) else None
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    found = [
        *(spec.submodule_search_locations or ()),
        *([spec.origin] if spec.has_location else ()),
    ]
    root = os.path.dirname(os.path.abspath(found[0])) if found and found[0] else ""
    return "" if root.startswith(_INSTALLED) else root


def see_current_folder() -> None:
    """Put the current folder on the path, and not '', which another process takes for its own."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
