"""The state of an illumination as arrays of a checkpoint, and back."""

from dataclasses import asdict
from typing import Any

import jax

from understudy.qd.map_elites import Illuminator, State
from understudy.qd.repertoire_file import (
    describe_cells,
    pack,
    read_cells,
    refuse_other_cells,
    unpack,
)
from understudy.qd.run import Position
from understudy.runs import checkpoint
from understudy.state_dict import StateDict, add_prefix, load_state_dict, select_prefix, state_dict


def capture(
    illuminator: Illuminator, position: Position, experience: bool = True
) -> tuple[dict[str, StateDict], dict[str, Any]]:
    """Return the groups of arrays and a part of the manifest for a checkpoint. Without the
    experience its repertoire can be used, but the run cannot resume."""
    state = illuminator.state
    world = add_prefix("repertoire", pack(state.repertoire))
    world |= add_prefix("rest", state_dict(_rest(state)))
    if state.experience is not None and experience:
        one_seed = jax.tree.map(lambda x: x[None], state.experience)
        buffer = illuminator.plan.buffer
        world |= add_prefix("experience", buffer.state_dict(one_seed))
    learner = add_prefix("emitter", state_dict(state.emitter))
    about = {"position": asdict(position), "cells": describe_cells(state.repertoire.cells)}
    return {"learner": learner, "world": world}, about


def restore(illuminator: Illuminator, stored: checkpoint.Stored) -> bool:
    """Take over the state of a checkpoint; return whether the run can resume from it."""
    state, world = illuminator.state, stored.groups["world"]
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
                            state.repertoire.policies)  # fmt: skip
    arrays = select_prefix(world, "repertoire")
    cells = read_cells(stored.place, stored.manifest.get("cells"), arrays)
    refuse_other_cells(stored.place, cells, state.repertoire.cells)
    rest = load_state_dict(_rest(state), select_prefix(world, "rest"))
    experience, steps = state.experience, select_prefix(world, "experience")
    if experience is not None and steps:
        one_seed = jax.tree.map(lambda x: x[None], experience)
        buffer = illuminator.plan.buffer
        experience = jax.tree.map(lambda x: x[0], buffer.load_state_dict(one_seed, steps))
    illuminator.state = state._replace(
        repertoire=unpack(arrays, cells, template),
        emitter=load_state_dict(state.emitter, select_prefix(stored.groups["learner"], "emitter")),
        experience=experience,
        **rest,
    )
    return experience is None or bool(steps)


def _rest(state: State) -> dict[str, Any]:
    names = ("key", "generation", "offset", "counts")
    return {name: getattr(state, name) for name in names}
