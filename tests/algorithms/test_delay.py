"""Delayed parts: what is delayed is neither changed, nor counted, nor computed."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.algorithm_cases import KEY, case, make_batch, mapped, parts_of, same

pytestmark = pytest.mark.agents

MEMBERS = 3
ACTOR_PARTS = ("actor", "actor_optimizer")
TARGET_PARTS = ("target_actor", "target_critic")


def changed(made, index):
    new, aux = made.update(index=index)
    before, after = parts_of(made.state), parts_of(new)
    return {name for name in before if not same(after[name], before[name])}, aux


@pytest.mark.parametrize("index", range(4))
def test_actor_and_targets_wait_for_their_turn(index):
    got, aux = changed(case("td3"), index)
    always = {"critic", "critic_optimizer", "updates"}
    if index % 2 == 0:
        assert got == always | set(ACTOR_PARTS) | set(TARGET_PARTS)
        assert np.isfinite(aux.metrics["actor_loss"])
    else:
        assert got == always  # bit for bit the same otherwise
        assert np.isnan(aux.metrics["actor_loss"])  # absent from means, never zero
    assert np.isfinite(aux.metrics["critic_loss"])


@pytest.mark.parametrize(
    "index, due", [(0, "both"), (1, ""), (2, "actor"), (4, "actor"), (6, "both")]
)
def test_targets_may_wait_longer(index, due):
    got, _ = changed(case("td3", target_update_interval=3), index)
    assert got >= {"critic"}
    assert (set(ACTOR_PARTS) <= got) == (due in ("actor", "both"))
    assert (set(TARGET_PARTS) <= got) == (due == "both")
    assert due or not got & {*ACTOR_PARTS, *TARGET_PARTS}


def test_without_delay_everything_moves_every_time():
    made = case("td3", policy_delay=1)
    assert made.algorithm.update_mask(jnp.int32(1)) == (True, True, False)  # no conditional
    got, _ = changed(made, 1)
    assert set(ACTOR_PARTS + TARGET_PARTS) <= got


@pytest.mark.parametrize("index", range(6))
def test_sacs_policy_may_wait(index):
    """Actor and temperature move every third time, targets every second time."""
    made = case("sac", policy_delay=3, target_update_interval=2)
    assert made.algorithm.delays.period == 6
    got, aux = changed(made, index)
    policy = {"actor", "actor_optimizer", "temperature", "temperature_optimizer"}
    want = {"critic", "critic_optimizer", "updates"}
    want |= policy if index % 3 == 0 else set()
    assert got == want | ({"target_critic"} if index % 2 == 0 else set())
    for metric in ("actor_loss", "entropy", "ent_coef_loss"):
        assert np.isfinite(aux.metrics[metric]) == (index % 3 == 0)
    assert np.isfinite(aux.metrics["critic_loss"]) and np.isfinite(aux.metrics["ent_coef"])


def test_sacs_delay_changes_no_update_that_takes_part():
    """Update 0 of both is the same, bit for bit: a delay leaves out, and changes nothing else."""
    (plain, _), (delayed, _) = case("sac").update(), case("sac", policy_delay=2).update()
    assert same(plain, delayed)


def test_sacs_targets_may_wait():
    made = case("sac", target_update_interval=2)
    assert "target_critic" in changed(made, 0)[0]
    got, aux = changed(made, 1)
    assert "target_critic" not in got
    assert {"actor", "critic", "temperature"} <= got and np.isfinite(aux.metrics["actor_loss"])


def computations(text):
    """The computations of a compiled program: name -> its lines."""
    found, name = {}, None
    for line in text.splitlines():
        header = re.match(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if header:
            name = header.group(1)
            found[name] = []
        elif line.startswith("}"):
            name = None
        elif name is not None:
            found[name].append(line)
    return found


CALLS = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)


def has_product(program, name):
    """Whether a matrix product lies in a computation or in anything it calls."""
    for line in program[name]:
        if re.search(r"\b(dot|convolution|custom-call)\(", line):
            return True
        if any(has_product(program, called) for called in CALLS.findall(line)):
            return True
    return False


def branches(program):
    """The pairs of branches of every conditional."""
    pairs = []
    for line in (line for lines in program.values() for line in lines):
        if " conditional(" in line:
            several = re.search(r"branch_computations=\{([^}]*)\}", line)
            if several:
                pairs.append([name.strip().lstrip("%") for name in several.group(1).split(",")])
            else:
                pairs.append(re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", line))
    return pairs


def compiled(index_axis):
    """The program of one update of K members."""
    made = case("td3")
    states, batch = (
        mapped(lambda x: np.stack([x] * MEMBERS), tree) for tree in (made.state, make_batch())
    )
    keys = jax.random.split(KEY, MEMBERS)
    index = jnp.int32(0) if index_axis is None else jnp.zeros(MEMBERS, jnp.int32)
    lifted = jax.vmap(made.raw_update, in_axes=(0, 0, 0, index_axis))
    return computations(jax.jit(lifted).lower(states, batch, keys, index).compile().as_text())


def test_a_skipped_actor_costs_no_matrix_product_for_many_members():
    """The trap of rule 5: the skipping branch must exist and must hold no product."""
    program = compiled(index_axis=None)
    products = [[has_product(program, name) for name in pair] for pair in branches(program)]
    assert sorted([False, True]) in [sorted(pair) for pair in products]
    assert [True, True] not in products  # and no conditional computes on both sides


def test_the_check_above_can_fail():
    """A batched index turns the conditional into computing both sides."""
    program = compiled(index_axis=0)
    products = [[has_product(program, name) for name in pair] for pair in branches(program)]
    assert not any(any(pair) for pair in products)


def test_members_are_independent():
    made = case("td3")
    batches = [make_batch(seed=seed) for seed in range(MEMBERS)]
    keys = [jax.random.PRNGKey(seed) for seed in range(MEMBERS)]
    states = [mapped(lambda x, s=s: x * (1 + s), made.state) for s in range(MEMBERS)]
    stacked = [mapped(lambda *x: np.stack(x), *trees) for trees in (states, batches)]
    lifted = jax.jit(jax.vmap(made.raw_update, in_axes=(0, 0, 0, None)))
    together, _ = jax.device_get(lifted(*stacked, jnp.asarray(np.stack(keys)), jnp.int32(0)))
    for member in range(MEMBERS):
        alone, _ = made.update(states[member], batches[member], keys[member])
        for x, y in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(x, y[member], rtol=1e-4, atol=1e-5)
