"""What a compiled program does with the memory that it was given."""

import math
import re

import jax

LONG_LANE = 54_324  # slots: many more than any batch has elements


def large_copies(compiled, smallest: int) -> list[str]:
    """The instructions that copy an array of so many elements, as a whole."""
    lines = [line for line in compiled.as_text().splitlines() if " copy(" in line]
    return [line for line in lines if _largest(line.split(" copy(")[0]) >= smallest]


def _largest(shapes: str) -> int:
    found = [dims.split(",") for dims in re.findall(r"\[([\d,]+)\]", shapes)]
    return max((math.prod(map(int, dims)) for dims in found), default=1)


def pointers(tree) -> list[int]:
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]
