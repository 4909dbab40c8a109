"""Forged checkpoints: signed correctly, and wrong in what they say."""

import json
import sys

import gymnasium as gym
import numpy as np

import understudy as us
from understudy.runner import Description, Node
from understudy.runs import checkpoint

PAYLOAD = """
from pathlib import Path
Path(__file__).with_name("executed").touch()
"""
OWN = """
import gymnasium as gym
from gymnasium.envs.classic_control import PendulumEnv


class Own(PendulumEnv):
    pass


gym.register("Own-v0", entry_point=Own, max_episode_steps=5)
"""
SMALL = dict(hidden_sizes=(8,), batch_size=4, buffer_size=64, start_steps=4, min_buffer_size=8)


def train(run_dir, env="Pendulum-v1", steps=20):
    agent = us.SAC(env, us.SACConfig(**SMALL))
    run = us.RunConfig(evaluation_episodes=1, checkpoint_every=10)
    agent.train(steps, run=run, run_dir=run_dir, progress=False)
    agent.close()
    return run_dir


def sign(place, **changes):
    """Change a manifest, and compute the checksum as anybody can."""
    path = place / checkpoint.MANIFEST
    manifest = json.loads(path.read_text()) | changes
    manifest["sha256"] = checkpoint.checksum(manifest)
    path.write_text(json.dumps(manifest))


def all_places(run_dir):
    return [*checkpoint.numbered(run_dir), run_dir / checkpoint.BEST]


def forge(run_dir, **changes):
    """The same in all checkpoints of a run, and in what it says of itself."""
    for place in all_places(run_dir):
        if place.exists():
            sign(place, **changes)
    about = json.loads((run_dir / "run.json").read_text()) | changes
    (run_dir / "run.json").write_text(json.dumps(about))


def forget(module, env_id):
    sys.modules.pop(module, None)
    gym.registry.pop(env_id, None)


def policy(nodes, shape=(3,), memory=0, answer="action"):
    spec = {"observation": {"shape": list(shape), "dtype": "float32"},
            "action": {"low": [-1.0], "high": [1.0], "shape": [1]}}  # fmt: skip
    arrays = {"w": np.ones((3, 1), np.float32), "b": np.ones(1, np.float32)}
    return Description(spec, {}, tuple(nodes), answer, answer, memory, "", arrays)


GOOD = [Node("dense", ("observation", "w", "b"), "action", {})]
