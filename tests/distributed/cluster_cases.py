"""Small agents on a cluster, and what their experience must look like."""

import contextlib
import os
import signal
import time

import gymnasium
import jax
import numpy as np
import pytest

import understudy as us

CHUNK_STEPS, LEARNING_FROM = 10, 20  # steps
SMALL = dict(hidden_sizes=(8,), batch_size=8, buffer_size=4_000, start_steps=10,
             min_buffer_size=LEARNING_FROM)  # fmt: skip
RUN = us.RunConfig(log_every=50, evaluate_every=0, evaluation_episodes=1, checkpoint_every=0)


class Slow(gymnasium.Wrapper):
    """A pendulum whose step takes a while."""

    def __init__(self, seconds=0.003):
        super().__init__(gymnasium.make("Pendulum-v1"))
        self._seconds = seconds

    def step(self, action):
        time.sleep(self._seconds)
        return self.env.step(action)


class DeadlyElsewhere:
    """Makes environments in the process that it was made in, and is the death of any other."""

    def __init__(self):
        self._home = os.getpid()

    def __call__(self):
        if os.getpid() != self._home:
            os._exit(1)
        return gymnasium.make("Pendulum-v1")


def sac(
    env="Pendulum-v1", *, collectors=2, seed=0, num_envs=1, num_seeds=1, config=None, **cluster
):
    """An agent with a cluster."""
    config = us.SACConfig(**(SMALL | (config or {})))
    cluster = (
        dict(collectors=collectors, collector_chunk_steps=CHUNK_STEPS, cpus_each=0.5) | cluster
    )
    return us.SAC(env, config, seed=seed, num_envs=num_envs, num_seeds=num_seeds,
                  cluster=us.Cluster(**cluster))  # fmt: skip


def train(agent, steps, *callbacks, run=RUN, **others):
    return agent.train(steps, run=run, callbacks=callbacks, progress=False, **others)


def supervisor_of(agent):
    return agent.trainer.collectors.supervisor


def processes_of(agent):
    return supervisor_of(agent).call_all("pid")


def kill(*processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # Ray ends an actor without references
            os.kill(process, signal.SIGKILL)


def once_at(steps, act):
    """A callback that acts at the first row of the log from there on."""
    left = [act]

    def callback(facts):
        if facts["time/total_steps"] >= steps and left:
            left.pop()()

    return callback


def lanes_of(agent):
    """What was stored, lane by lane, oldest first, of every member (rings that are not full)."""
    ring = jax.device_get(agent.trainer.experience)
    members = [jax.tree.map(lambda leaf, m=m: leaf[m], ring) for m in range(agent.num_seeds)]
    return [
        [
            jax.tree.map(lambda leaf, lane=lane, n=count: leaf[lane, :n], member.storage)
            for lane, count in enumerate(member.stored)
        ]
        for member in members
    ]


def assert_counted_once(agent, steps):
    """Every step is stored, once, after the one that it followed; and was learned from."""
    position = agent.trainer.position
    assert agent.steps == steps
    assert position.updates == steps - LEARNING_FROM
    for lanes in lanes_of(agent):
        assert sum(len(lane.reward) for lane in lanes) == steps
        seen = np.concatenate([lane.observation for lane in lanes])
        assert len(np.unique(seen, axis=0)) == steps
        for lane in lanes:
            goes_on = ~lane.last[:-1]
            after, before = lane.observation[1:], lane.next_observation[:-1]
            np.testing.assert_array_equal(after[goes_on], before[goes_on])


def everyone_is_back(agent):
    """Train on, so much at a time that everyone is asked, until all collectors deliver."""
    supervisor = supervisor_of(agent)
    while supervisor.started < len(supervisor.slots):
        train(agent, 4 * CHUNK_STEPS)


def wait_for_death(ray, actor):
    """Until Ray knows of it: a kill takes effect when Ray gets to it."""
    with pytest.raises(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.pid.remote())
