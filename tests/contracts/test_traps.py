"""Wrong versions that earlier systems shipped, each caught by the tests meant for it.

A wrong version is the package with one line changed. Its tests run in a process of their own and
have to fail. The tests themselves are part of `make test`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = REPOSITORY / "tests"
FAILED = 1  # pytest's exit code for tests that ran and failed

pytestmark = [pytest.mark.slow, pytest.mark.processes]


class Trap(NamedTuple):
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]  # each of them has to fail


TRAPS = {
    "cloned critics": Trap(
        "networks/ensembles.py",
        "jax.vmap(make)(jax.random.split(key, size))",
        "jax.vmap(lambda _: make(key))(jax.random.split(key, size))",
        (
            "networks/test_values.py::test_members_of_an_ensemble_are_independent",
            "algorithms/test_protocol.py::test_any_number_of_critics",
        ),
    ),
    "terminated and truncated merged": Trap(
        "buffers/replay.py",
        "gamma * (1.0 - store.terminated[lane, first])",
        "gamma * (1.0 - store.last[lane, first])",
        (
            "buffers/test_replay.py::test_what_can_be_sampled_is_what_a_list_would_hold",
            "faults/test_environment_ends.py::test_discounts_from_replay",
        ),
    ),
    "unscaled noise": Trap(
        "algorithms/td3/losses.py",
        "jnp.clip(policy_noise * noise, -noise_clip, noise_clip)",
        "jnp.clip(noise, -noise_clip, noise_clip)",
        ("algorithms/test_losses_by_hand.py::test_td3_target",),
    ),
    "fixed temperature exponentiated": Trap(
        "algorithms/sac/sac.py",
        'return state.hyper["temperature"]',
        'return jnp.exp(state.hyper["temperature"])',
        ("algorithms/test_optimizers.py::test_a_fixed_temperature_means_itself",),
    ),
    "priorities not updated": Trap(
        "buffers/base.py",
        "tree = sum_tree.write(tree, jnp.where(accepted, indices, NOWHERE), priority)",
        "",
        (
            "training/test_updates.py::"
            "test_priorities_follow_the_errors_and_importance_weights_become_complete",
        ),
    ),
    "actor's gradient not stopped": Trap(
        "algorithms/gradients.py",
        "if config.actor_trains_encoder and isinstance(actor.observation_encoder, SharedEncoder):",
        "if isinstance(actor.observation_encoder, SharedEncoder):",
        ("algorithms/test_seeing.py::test_the_actors_gradient_stays_out_of_a_shared_encoder",),
    ),
    "Ornstein-Uhlenbeck noise not restarted": Trap(
        "ops/exploration.py",
        "jnp.where(first[:, None], sigma * normals, (1.0 - theta) * previous + fresh)",
        "(1.0 - theta) * previous + fresh",
        (
            "ops/test_exploration.py::test_an_episodes_first_noise_knows_nothing_of_the_last",
            "algorithms/test_ddpg.py::test_lingering_noise_restarts_with_an_episode_and_only_there",
        ),
    ),
    "advantages across an end": Trap(
        "ops/returns.py",
        "trace_decay * jnp.where(ends, 0.0, later)",
        "trace_decay * later",
        (
            "ops/test_returns.py::test_nothing_crosses_the_end_of_an_episode",
            "ops/test_returns.py::test_gae_worked_by_hand",
        ),
    ),
    "sign of the target entropy": Trap(
        "algorithms/sac/sac.py",
        "if discrete else -size",
        "if discrete else size",
        (
            "algorithms/test_optimizers.py::"
            "test_the_target_entropy_is_minus_the_dimensions_unless_told",
        ),
    ),
    "n-step sums across an episode": Trap(
        "ops/returns.py",
        "present[:, 1:] & unbroken",
        "present[:, 1:]",
        (
            "ops/test_returns.py::test_n_step_is_the_loop",
            "buffers/test_n_step.py::test_truncated_by_hand",
        ),
    ),
}


def fails(test: str, package: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, str(TESTS / test)],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(package), "UNDERSTUDY_TEST_COMPILER": "quick"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", TRAPS)
def test_a_wrong_version_is_caught(name, tmp_path):
    trap = TRAPS[name]
    shutil.copytree(REPOSITORY / "src" / "understudy", tmp_path / "understudy")
    file = tmp_path / "understudy" / trap.file
    text = file.read_text(encoding="utf-8")
    assert text.count(trap.right) == 1
    file.write_text(text.replace(trap.right, trap.wrong), encoding="utf-8")
    for test in trap.tests:
        result = fails(test, tmp_path)
        assert result.returncode == FAILED, f"{test}: {result.stdout[-2_000:]}{result.stderr}"
