"""Makes a path of a trace into one Python function over arrays.

Playback calls a method of the builder for each operation, which unpacks handles, checks what types
settle, and packs a handle again: several times what numpy takes for a small array. Here the types
are known: most operations become one call of numpy on local variables, with the same operands and
the same layout of the result. Loads and stores are checked, logged and journaled as ever. What is
not one of the operations of `meaning` is called as in any playback.

Left out is only what cannot show: results that nothing takes, equal operations on equal operands,
and views of a broadcast operand where numpy broadcasts by itself.

`meaning` tells what a call of the builder comes to, `arithmetic`, `shapes` and `accesses` write it
down, `results` knows the variable of each result, and `lines` holds the text.
"""

from fuzzgraph.lanes.straight_line.writing import straight_line

__all__ = ["straight_line"]
