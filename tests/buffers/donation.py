"""What a compiled program does with the memory that it was given."""

import math
import re

import jax

LONG_LANE = 54_324  # slots of a lane: many more than a batch has bytes


def assert_in_place(compiled, counts_slots: bool = False) -> None:
    """No instruction copies a large array, nor is there memory for another version of one, unless
    it may be for counting the slots that hold steps."""
    copies = [line for line in compiled.as_text().splitlines() if " copy(" in line]
    assert not [line for line in copies if _elements(line.split(" copy(")[0]) >= LONG_LANE // 8]
    assert counts_slots or compiled.memory_analysis().temp_size_in_bytes < LONG_LANE


def _elements(shapes: str) -> int:
    found = [dims.split(",") for dims in re.findall(r"\[([\d,]+)\]", shapes)]
    return max((math.prod(map(int, dims)) for dims in found), default=1)


def pointers(tree) -> list[int]:
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]
