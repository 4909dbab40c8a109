"""What a collector has come to, as named arrays: random keys, recurrent states, open episodes, and
the chunk at hand."""

from operator import itemgetter

import jax
import numpy as np

from understudy.state_dict import Named, name_leaves, part_of, put_back, to_host, under
from understudy.training.actor import join
from understudy.training.collector import Collector
from understudy.training.step_packing import rows_of


def state_dict(collector: Collector) -> Named:
    """The same for any number of parts."""
    actors = collector.actors
    named = {"key": to_host(join([actor.key for actor in actors]))}
    named |= under("tally", collector.tally.named())
    named |= under("memory", name_leaves(join([actor.memory for actor in actors])))
    if collector.seen is None:  # nothing has happened yet
        return named
    fields = collector.acting_rows.fields or ()
    named |= under("seen", {name: collector.seen[name].copy() for name in fields})
    if collector.record:
        chunk = np.stack(collector.record)
        named |= under("chunk", {name: chunk[name] for name in collector.step_rows.fields or ()})
    return named | under("environments", collector.open_actions.named(collector.envs))


def load_state_dict(collector: Collector, named: Named) -> None:
    """Go on from there. Environments come back by repeating the actions of open episodes."""
    actors = collector.actors
    memory = put_back(join([actor.memory for actor in actors]), part_of(named, "memory"))
    key = put_back(join([actor.key for actor in actors]), {"": named["key"]})
    for actor, part in zip(actors, collector.parts, strict=True):
        own = jax.tree.map(itemgetter(part), (memory, key))
        actor.memory, actor.key = jax.device_put(own, actor.device)
    collector.tally.put_back(part_of(named, "tally"))
    seen, chunk = part_of(named, "seen"), part_of(named, "chunk")
    if not seen:
        return
    if chunk:
        collector.record = list(rows_of(collector.step_rows, chunk))
    before = rows_of(collector.acting_rows, seen).reshape(-1)
    spec = collector.setting.spec.action.stored
    action = np.zeros((len(before), *spec.shape), spec.dtype)
    observation, lost = collector.open_actions.bring_back(
        collector.envs, part_of(named, "environments"), before["observation"], action
    )
    collector.see(observation, before["first"] | lost)
    if lost.any():
        collector.tally.forget(lost)
        if collector.record:  # the latest step was its episode's last one
            collector.record[-1]["last"] |= lost.reshape(collector.axes)
