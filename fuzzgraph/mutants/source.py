"""The source text of one module: places by line and column, replaced without moving other lines."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of a source that is replaced."""

    start: int
    """Byte offset, as `end`."""
    end: int
    text: str


class Source:
    """One module's text and tree.

    Columns of `ast` count bytes of UTF-8, so the text is kept as bytes.
    """

    def __init__(self, path: str, text: bytes) -> None:
        self.path = path
        self.bytes = text
        self.tree = ast.parse(text, path)
        self._begins = [0]
        for line in text.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))

    @classmethod
    def read(cls, path: str) -> Source:
        return cls(path, Path(path).read_bytes())

    @cached_property
    def lines(self) -> list[str]:
        return self.bytes.decode().splitlines(keepends=True)

    def offset(self, line: int, column: int) -> int:
        return self._begins[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Byte offsets of a node's text; parentheses around it are not part of it."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.bytes[start:end].decode()

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, str]:
        """The text between two neighbours, and where it begins."""
        start, end = self.span(left)[1], self.span(right)[0]
        return start, self.bytes[start:end].decode()

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        return Edit(*self.span(node), text)

    def edited(self, edit: Edit) -> bytes:
        """The whole text with one part replaced, and every later line where it was."""
        removed = self.bytes[edit.start : edit.end].count(b"\n")
        missing = removed - edit.text.count("\n")
        # A replacement of several lines by one is followed by empty lines, or, where more of the
        # statement follows on the last line, by continued ones.
        rest = self.bytes[edit.end :]
        alone = rest.split(b"\n", 1)[0].strip() == b""
        filler = (b"\n" if alone else b" \\\n") * missing
        return self.bytes[: edit.start] + edit.text.encode() + filler + rest
