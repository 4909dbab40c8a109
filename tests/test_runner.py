"""The player alone: without JAX, one operation after the other, in the face of wrong input."""

import json
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save as format_safetensors

import understudy as us
from understudy.export.describe import describe
from understudy.networks.cnn import Conv, max_pool
from understudy.networks.mlp import ACTIVATIONS, LayerNorm, RMSNorm
from understudy.networks.rnn import CELLS
from understudy.runner import (
    DRAWS,
    METADATA,
    NO_CHECKSUM,
    OPERATIONS,
    Description,
    Node,
    Player,
    checksum_of,
    load,
)
from understudy.runs.policy_file import save_policy
from understudy.types import CheckpointError, EnvironmentError

REPOSITORY = Path(__file__).resolve().parent.parent
KEY = jax.random.PRNGKey(0)
EXTREME = np.array([-100.0, -9.0, -1.0, -1e-4, 0.0, 1e-4, 0.5, 3.0, 100.0], np.float32)


def a_description():
    """Two numbers in, their doubles out, kept in [-1, 1]; noise on them while exploring."""
    nodes = (
        Node("dense", ("observation", "weight", "bias"), "v0", {}),
        Node("clip", ("v0", "low", "high"), "v1", {}),
        Node("normal", ("v1", "noise"), "v2", {}),
    )
    arrays = {
        "weight": np.eye(2, dtype=np.float32) * 2,
        "bias": np.zeros(2, np.float32),
        "low": np.float32(-1.0),
        "high": np.float32(1.0),
        "noise": np.float32(0.5),
    }
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    spec = {
        "observation": {"shape": [2], "dtype": "float32"},
        "action": {"low": [-1.0, -1.0], "high": [1.0, 1.0], "shape": [2]},
    }
    return Description(spec, {"algorithm": "td3"}, nodes, "v1", "v2", 0, "", arrays)


@pytest.fixture(scope="module")
def trained():
    """An agent whose normalizer has seen something."""
    config = us.SACConfig(
        hidden_sizes=(8,),
        batch_size=16,
        buffer_size=512,
        start_steps=20,
        min_buffer_size=20,
        normalize_observations=True,
    )
    agent = us.SAC("Pendulum-v1", config)
    agent.train(60, progress=False, run=us.RunConfig(evaluation_episodes=1))
    yield agent
    agent.close()


def test_it_plays_what_an_agent_learned(trained, tmp_path):
    policy = jax.tree.map(lambda leaf: leaf[0], trained.algorithm.policy(trained.state))
    description = describe(trained.algorithm, policy, trained.spec, {"env": "Pendulum-v1"})
    player = load(save_policy(tmp_path / "policy.safetensors", description))
    seen = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    np.testing.assert_allclose(player.act(seen), trained.act(seen), atol=4e-5, rtol=0)  # of ±2
    assert player.about["algorithm"] == "sac" and player.about["env"] == "Pendulum-v1"
    assert us.types.Spec.from_dict(player.spec) == trained.spec


@pytest.mark.processes
def test_it_loads_no_jax(tmp_path):
    path = save_policy(tmp_path / "policy.safetensors", a_description())
    code = (
        "import sys, numpy, understudy.runner\n"
        f"player = understudy.runner.load({str(path)!r})\n"
        "player.act(numpy.zeros(2)), player.act(numpy.zeros((3, 2)), deterministic=False)\n"
        "heavy = {'jax', 'jaxtyping', 'equinox', 'gymnasium', 'scipy', 'matplotlib'}\n"
        "heavy.add('safetensors')\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_one_observation_or_a_batch():
    player = Player(a_description())
    np.testing.assert_array_equal(player.act([0.25, -3.0]), np.float32([0.5, -1.0]))
    batch = player.act(np.array([[0.25, -3.0], [0.0, 0.1], [9.0, 9.0]], np.float64))
    assert batch.dtype == np.float32
    np.testing.assert_allclose(batch, [[0.5, -1.0], [0.0, 0.2], [1.0, 1.0]])
    assert player.act(np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 2, 2)])
def test_an_observation_of_the_wrong_shape_is_explained(shape):
    with pytest.raises(EnvironmentError, match=r"has shape \(2,\), got"):
        Player(a_description()).act(np.zeros(shape))


@pytest.mark.parametrize("rows", [(), (3,)])
def test_an_action_that_is_no_number_is_never_given(rows):
    seen = np.zeros((*rows, 2))
    seen[..., 1] = np.nan
    with pytest.raises(EnvironmentError, match="not a finite number"):
        Player(a_description()).act(seen)


def test_draws_are_the_generators():
    player, seen = Player(a_description()), np.zeros((5, 2))
    draws = [
        player.act(seen, deterministic=False, rng=np.random.default_rng(seed)) for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).all()
    assert (player.act(seen, deterministic=False) != player.act(seen, deterministic=False)).all()


def test_one_choice_is_a_plain_number():
    nodes = (
        Node("argmax", ("observation",), "v0", {}),
        Node("epsilon_greedy", ("v0", "epsilon"), "v1", {"choices": 3}),
        Node("add", ("v0", "start"), "v2", {}),
        Node("add", ("v1", "start"), "v3", {}),
    )
    arrays = {"epsilon": np.array(0.5, np.float32), "start": np.array(5)}
    spec = {"observation": {"shape": [3], "dtype": "float32"}, "action": {"n": 3, "start": 5}}
    player = Player(Description(spec, {}, nodes, "v2", "v3", 0, "", arrays))
    space = gymnasium.spaces.Discrete(3, start=5)
    for deterministic in (True, False):
        action = player.act([0.0, 1.0, 0.0], deterministic=deterministic)
        assert {action: "can be looked up"} and space.contains(action)
    assert player.act([0.0, 1.0, 0.0]) == 6


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_are_those_of_the_networks(name):
    ours = OPERATIONS[name](EXTREME)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, ACTIVATIONS[name](jnp.asarray(EXTREME)), rtol=1e-6, atol=1e-6)


def test_layer_norm_is_that_of_the_networks():
    x = np.random.default_rng(0).normal(0.3, 1e-2, (4, 6)).astype(np.float32)
    ours = OPERATIONS["layer_norm"](x, np.full(6, 2.0, "f4"), np.ones(6, "f4"), epsilon=1e-6)
    theirs = LayerNorm(6)(jnp.asarray(x))
    np.testing.assert_allclose(ours, 2.0 * np.asarray(theirs) + 1.0, rtol=1e-4, atol=1e-4)


def test_rms_norm_is_that_of_the_networks():
    x = np.random.default_rng(0).normal(0.3, 1e-2, (4, 6)).astype(np.float32)
    x[0] *= 1e-4  # of the size of epsilon
    ours = OPERATIONS["rms_norm"](x, np.full(6, 2.0, "f4"), epsilon=1e-6)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, 2.0 * np.asarray(RMSNorm(6)(jnp.asarray(x))), rtol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [(8, 4, "VALID"), (3, 1, "SAME"), (3, 2, "SAME"), (2, 2, "SAME")],
)
def test_convolutions_are_those_of_the_networks(kernel, stride, padding):
    layer = Conv(3, 4, kernel, KEY, stride=stride, padding=padding)
    x = np.random.default_rng(0).normal(size=(2, 9, 12, 3)).astype(np.float32)
    weight = np.asarray(layer.weight).transpose(3, 2, 0, 1)
    settings = {"stride": stride, "padding": padding}
    ours = OPERATIONS["conv"](x, weight, np.asarray(layer.bias), **settings)
    np.testing.assert_allclose(ours, layer(jnp.asarray(x)), rtol=1e-4, atol=1e-5)
    alone = OPERATIONS["conv"](x[1], weight, np.asarray(layer.bias), **settings)
    np.testing.assert_allclose(alone, ours[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sides", [(7, 8), (1, 2), (4, 5)])
def test_pooling_is_that_of_the_networks(sides):
    x = np.random.default_rng(0).normal(-9, 1, (2, *sides, 3)).astype(np.float32)
    ours = OPERATIONS["max_pool"](x, size=3, stride=2)
    np.testing.assert_array_equal(ours, max_pool(jnp.asarray(x)))


@pytest.mark.parametrize("name", sorted(CELLS))
def test_memories_are_those_of_the_networks(name):
    cell = jax.tree.map(lambda leaf: leaf + 0.25, CELLS[name](3, 4, KEY))
    rng = np.random.default_rng(0)
    x, memory = (rng.normal(size=(5, size)).astype("f4") for size in (3, cell.state_size))
    projected = np.asarray(cell.input(jnp.asarray(x)))
    arrays = [cell.recurrent, *([cell.candidate_bias] if name == "gru" else [])]
    ours = OPERATIONS[name](memory, projected, *map(np.asarray, arrays))
    assert ours.dtype == np.float32
    theirs = cell(jnp.asarray(memory), jnp.asarray(x))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def a_counter():
    """Adds what it sees to its memory; the action is the sum."""
    nodes = (Node("add", ("memory", "observation"), "v0", {}), Node("tanh", ("v0",), "v1", {}))
    spec = {
        "observation": {"shape": [2], "dtype": "float32"},
        "action": {"low": [-1.0, -1.0], "high": [1.0, 1.0], "shape": [2]},
    }
    return Description(spec, {}, nodes, "v1", "v1", 2, "v0", {"nothing": np.zeros(1, np.float32)})


@pytest.mark.parametrize("rows", [(), (3,)])
def test_its_caller_keeps_the_memory(rows, tmp_path):
    player = load(save_policy(tmp_path / "policy.safetensors", a_counter()))
    seen, memory = np.full((*rows, 2), 0.25), None
    for step in (1, 2, 3):
        action, memory = player.act(seen, memory)
        np.testing.assert_allclose(action, np.tanh(np.full((*rows, 2), 0.25 * step)), rtol=1e-6)
    again, _ = player.act(seen)  # an episode begins
    np.testing.assert_allclose(again, np.tanh(np.full((*rows, 2), 0.25)), rtol=1e-6)


def test_a_file_from_before_there_was_memory_is_read(tmp_path):
    stored = {"format": 1, "sha256": NO_CHECKSUM, **a_description()._asdict()}
    arrays, _, _ = (stored.pop(name) for name in ("arrays", "memory", "next_memory"))
    data = format_safetensors(arrays, {METADATA: json.dumps(stored)})
    path = tmp_path / "policy.safetensors"
    path.write_bytes(data.replace(NO_CHECKSUM.encode(), checksum_of(data).encode(), 1))
    np.testing.assert_array_equal(load(path).act([0.25, -3.0]), np.float32([0.5, -1.0]))


def test_a_memory_that_does_not_fit_is_explained():
    with pytest.raises(EnvironmentError, match=r"memory .* has shape \(3, 2\), got \(2,\)"):
        Player(a_counter()).act(np.zeros((3, 2)), np.zeros(2))
    with pytest.raises(EnvironmentError, match="this policy has no memory"):
        Player(a_description()).act(np.zeros(2), np.zeros(2))


def test_a_file_that_promises_a_memory_must_make_one(tmp_path):
    broken = a_counter()._replace(next_memory="elsewhere")
    with pytest.raises(CheckpointError, match="there is no next memory"):
        load(save_policy(tmp_path / "policy.safetensors", broken))


def test_a_picture_of_floats_is_not_taken_for_bytes():
    spec = a_description().spec | {"observation": {"shape": [4, 4], "dtype": "uint8"}}
    with pytest.raises(EnvironmentError, match="dtype uint8, got float64"):
        Player(a_description()._replace(spec=spec)).act(np.full((4, 4), 0.5))


def test_forbidden_choices_are_never_drawn():
    logits = np.tile(np.array([0.0, -np.inf, 1.0], np.float32), (500, 1))
    drawn = DRAWS["categorical"](np.random.default_rng(0), logits)
    assert set(drawn) == {0, 2}
