"""Compiles notes in forks of this process, because a compiler may end its process.

A fork makes compiled functions of all interpreted ones, Triton's own library included, and so has
the engine's kernels with all that they call, however the engine made them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from compiled.architectures import Architecture
from compiled.language import put_back
from compiled.launches import VENDORS, Note

SECONDS = 60
"""The longest that one kernel may take for one architecture."""
_LONGEST = 200
_OURS = 70
"""Exit code of a fork that failed by itself (EX_SOFTWARE of sysexits.h)."""


@dataclass(frozen=True)
class Outcome:
    """What came of one note for one architecture."""

    note: int
    architecture: str
    kind: str
    """`compiled`, `refused`, `crashed` (the compiler ended its process) or `slow`."""
    why: str = ""


def compile_all(notes: Sequence[Note], architectures: Sequence[Architecture]) -> Iterator[Outcome]:
    """Every note for every architecture, in order."""
    work = [(index, each) for index in range(len(notes)) for each in architectures]
    while work:
        done = 0
        for outcome in _forked(notes, work):
            done += 1
            yield outcome
        work = work[done:]


def _forked(notes: Sequence[Note], work: Sequence[tuple[int, Architecture]]) -> Iterator[Outcome]:
    """What one fork says; its death is the outcome of what it was at."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            os.close(reader)
            _in_the_fork(notes, work, errors.fileno(), writer)
        os.close(writer)
        done = 0
        with os.fdopen(reader) as lines:
            for line in lines:
                if line.endswith("\n"):  # else it died while it wrote
                    index, architecture = work[done]
                    done += 1
                    yield Outcome(index, architecture.name, **json.loads(line))
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # an assembler that a dead compiler had started
        if status:
            code = os.waitstatus_to_exitcode(status)
            errors.seek(0)
            said = errors.read().decode(errors="replace")
            if code == _OURS:  # a bug of this benchmark must not pass for a refusal
                raise RuntimeError(f"a fork failed before its compiler was asked: {said}")
            index, architecture = work[done]
            yield Outcome(index, architecture.name, *_end(code, said))


def _in_the_fork(
    notes: Sequence[Note], work: Sequence[tuple[int, Architecture]], errors: int, out: int
) -> NoReturn:
    """Compile, and end this process, whatever happens: it is a copy of one that goes on."""
    code = _OURS
    try:
        os.setpgid(0, 0)
        os.dup2(errors, 1)  # Triton prints what an assembler refuses
        os.dup2(errors, 2)
        _compile_here(notes, work, out)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _end(code: int, said: str) -> tuple[str, str]:
    """Kind and reason of a fork that ended with that exit code."""
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    kind = "slow" if name == "SIGALRM" else "crashed"
    return kind, ": ".join(filter(None, (name, _telling(said))))


def _compile_here(
    notes: Sequence[Note], work: Sequence[tuple[int, Architecture]], out: int
) -> None:
    """Compile one after the other, and write a line for each, up to one that fails inside."""
    made = compiled_functions()
    for index, architecture in work:
        signal.alarm(SECONDS)
        os.lseek(2, 0, 0)
        os.ftruncate(2, 0)
        why, inside = "", False
        compile_note = prepared(notes[index], architecture, made)  # what this raises is our error
        try:
            why = over_limits(compile_note(), architecture)
        except BaseException as error:  # whatever a compiler raises is its answer
            why = _first_cause(error)
            inside = isinstance(error, RuntimeError)
        signal.alarm(0)
        answer = {"kind": "refused" if why else "compiled", "why": why}
        os.write(out, (json.dumps(answer) + "\n").encode())
        if inside:
            # LLVM goes on behind a failed assertion, with memory that nothing has put in order.
            return


def prepared(note: Note, architecture: Architecture, made: _Made) -> Callable[[], Any]:
    """Compiles the note when it is called; that call raises what the compiler says."""
    import triton
    from triton.compiler import ASTSource, make_backend
    from triton.runtime import driver

    if not architecture.dependent_launch:
        note = note.without_dependent_launch()
    target = architecture.target()
    driver.set_active(_Driver(target))
    backend = make_backend(target)
    vendor = 1 + VENDORS.index(architecture.backend)
    function = made.of(note.kernel)
    constants = {name: _constant(value, made) for name, value in note.values.items()}
    order = list(note.types)
    attributes = {
        (order.index(name),): backend.parse_attr(kinds[vendor])
        for name, kinds in note.types.items()
        if isinstance(kinds[vendor], str) and kinds[0] != "constexpr"
    }
    source = ASTSource(
        function,
        {name: kinds[0] for name, kinds in note.types.items()},
        {(order.index(name),): value for name, value in constants.items()},
        attributes,
    )
    return partial(triton.compile, source, target=target, options=dict(note.options))


def over_limits(kernel: Any, architecture: Architecture) -> str:
    """Why the device would refuse to launch what was compiled; "" if it would not."""
    if kernel.metadata.shared > architecture.shared:
        return (
            f"shared memory: {kernel.metadata.shared} bytes, of {architecture.shared} that"
            f" {architecture.name} has"
        )
    return ""


class _Driver:
    """What code in kernels asks of the device at hand."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target


def _constant(value: Any, made: _Made) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    if isinstance(value, InterpretedFunction):
        return made.of(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


class _Made(dict[int, Any]):
    """Interpreted function, by its identity -> the compiled one."""

    def of(self, function: Any) -> Any:
        """The compiled one, which is made when it is first asked for."""
        from triton.runtime.jit import JITFunction

        if id(function) not in self:
            self[id(function)] = JITFunction(function.fn, **function.kwargs)
            self._close_over(function.fn)
        return self[id(function)]

    def _close_over(self, function: Any) -> None:
        """Replace what the kernel's own cells hold."""
        from triton.runtime.interpreter import InterpretedFunction

        for cell in function.__closure__ or ():
            if isinstance(cell.cell_contents, InterpretedFunction):
                cell.cell_contents = self.of(cell.cell_contents)


def compiled_functions() -> _Made:
    """Put compiled functions in the place of all interpreted ones, for the rest of this process."""
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    triton.knobs.runtime.interpret = False
    os.environ.pop("TRITON_INTERPRET", None)
    put_back()
    made = _Made()
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if type(value) is InterpretedFunction:
                with contextlib.suppress(ValueError):  # it has no source, so no kernel can call it
                    setattr(module, name, made.of(value))
    for name, value in list(vars(triton.language).items()):
        if type(value) is type(triton.language.sum) and hasattr(triton.language.tensor, name):
            setattr(triton.language.tensor, name, value)
    return made


def _first_cause(error: BaseException) -> str:
    """What the compiler said, in a line."""
    while error.__cause__ is not None:
        error = error.__cause__
    os.lseek(2, 0, 0)
    beside = _telling(os.read(2, 1 << 16).decode(errors="replace"))
    said = _telling(str(error)) or str(error).strip().rpartition("\n")[2].strip(" ^")
    text = f"{type(error).__name__}: {said}"
    return _short(f"{text} ({beside})" if beside else text)


def _telling(text: str) -> str:
    """The line in which a compiler says what is wrong; "" if none does."""
    lines = [line.strip() for line in text.splitlines()]
    for mark in ("Assertion", "LLVM ERROR", "error:", "fatal", "must", "should"):
        for line in lines:
            if mark in line:
                after = line[line.index(mark) :] if mark[0].isupper() or ":" in mark else line
                return _short(after.removeprefix("error:"))
    return ""


def _short(text: str) -> str:
    plain = re.sub(r"0x[0-9a-f]+", "...", " ".join(text.split()))
    return re.sub(r"(/[\w.+-]+)+/", "", plain)[:_LONGEST]
