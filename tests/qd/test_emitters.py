"""Variation by hand, and by TD3's own update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.envs.walking_native import SPEC
from tests.qd.qd_cases import SIZE, bits, config, flat, plan
from understudy.qd import repertoire as qd
from understudy.qd.emitters import CombinedEmitter, Emitter, IsoLine, PolicyGradient, vary
from understudy.training.learner import updates
from understudy.training.setup import make_buffer
from understudy.training.update import sample_batch
from understudy.types import Chunk, Step

KEY = jax.random.PRNGKey(5)
GUIDED, LANES = 4, 8
PLAN = plan()
TD3 = PLAN.td3
BUFFER = make_buffer(TD3, SPEC, LANES)
STEPS, RATE, CRITIC_STEPS = 3, 0.01, 4


def policy_gradient(size=GUIDED, policy_steps=STEPS):
    chosen = config(
        True, generation_size=LANES, gradient_share=size / LANES, critic_steps=CRITIC_STEPS,
        policy_steps=policy_steps, policy_learning_rate=RATE,
    )  # fmt: skip
    return PolicyGradient(TD3, SPEC, chosen)


MANY = 400


@jax.jit
def many_policies(key):
    return jax.vmap(lambda key: TD3.init(SPEC, key).params.actor)(jax.random.split(key, MANY))


def policies(count, key=KEY):
    """Whatever is stacked like policies: the first of many, so that one program makes all."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:count]), many_policies(key))


def row_of(tree, row):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[row], tree)


@jax.jit
def filled(parents):
    """A repertoire that holds all of these."""
    cells = PLAN.cells()
    count = len(jax.tree.leaves(parents)[0])
    empty = qd.empty(cells, jax.tree.map(lambda leaf: leaf[0], parents))
    born = jnp.arange(count, dtype=jnp.int32)
    return qd.add(empty, parents, jnp.zeros(count), cells.centers[:count], born)[0]


def wandered(seed=0, steps=20):
    """Replay in which something happened."""
    random = np.random.default_rng(seed)
    experience = jax.jit(BUFFER.init)()

    def some(*shape):
        return random.uniform(-1, 1, (steps, LANES, *shape)).astype(np.float32)

    ends = random.random((steps, LANES)) < 0.2
    all_steps = Step(*map(jnp.asarray, (some(2), some(2), some(), ends, ends, some(2))))
    valid = jnp.asarray(np.ones((steps, LANES), bool))

    return jax.jit(BUFFER.add)(experience, Chunk(all_steps, valid))


@pytest.fixture(scope="module")
def emitter():
    return policy_gradient()


@pytest.fixture(scope="module")
def experience():
    return wandered()


@pytest.fixture(scope="module")
def start(emitter):
    return jax.jit(emitter.init)(KEY)


@pytest.fixture(scope="module")
def learner(emitter, start, experience):
    return jax.jit(emitter.tell)(start, experience)


@pytest.fixture(scope="module")
def climbed(emitter, learner, experience):
    """The first six policies, after a climb."""
    return jax.jit(emitter.climb)(learner, policies(6), experience, KEY)


# -- iso + line -----------------------------------------------------------------------------------


jitted = jax.jit(vary, static_argnums=(2, 3))


def test_without_noise_offspring_are_their_parents():
    parents = policies(3)
    offspring = jax.jit(IsoLine(20, 0.0, 0.0).ask)((), filled(parents), None, KEY)
    known, children = flat(parents), flat(offspring)
    assert children.shape == (20, known.shape[1])
    whose = [int(np.flatnonzero((known == child).all(axis=1))[0]) for child in children]
    assert set(whose) == {0, 1, 2}


def test_offspring_lie_on_the_line_through_both_parents():
    """At one number for a whole policy, and each at its own."""
    count = MANY
    x, y = policies(count), policies(count, jax.random.PRNGKey(6))
    sigma = 0.3
    start, end, children = (flat(each) for each in (x, y, jitted(x, y, 0.0, sigma, KEY)))
    across = end - start
    along = ((children - start) * across).sum(axis=1) / (across**2).sum(axis=1)
    np.testing.assert_allclose(children, start + along[:, None] * across, atol=1e-5)
    assert len(set(along.tolist())) == count
    # The standard errors of the mean and of the standard deviation, four times.
    assert abs(along.mean()) < 4 * sigma / np.sqrt(count)
    assert abs(along.std() - sigma) < 4 * sigma / np.sqrt(2 * count)


def test_noise_is_every_weights_own():
    count, sigma = 50, 0.2
    x = policies(count)
    noise = flat(jitted(x, x, sigma, 0.7, KEY)) - flat(x)  # the line between twins is a point
    assert abs(noise.mean()) < 4 * sigma / np.sqrt(noise.size)
    assert abs(noise.std() - sigma) < 4 * sigma / np.sqrt(2 * noise.size)
    between = np.corrcoef(noise)[np.triu_indices(count, 1)]
    assert np.abs(between).max() < 6 / np.sqrt(noise.shape[1])
    columns = np.corrcoef(noise.T)[np.triu_indices(noise.shape[1], 1)]
    assert np.abs(columns).max() < 6 / np.sqrt(count)


def test_parents_come_from_the_repertoire():
    """Of two policies, every child lies on the one line that there is."""
    parents = policies(2)
    children = flat(jax.jit(IsoLine(30, 0.0, 1.0).ask)((), filled(parents), None, KEY))
    first, second = flat(parents)
    across = second - first
    along = (children - first) @ across / (across @ across)
    np.testing.assert_allclose(children, first + along[:, None] * across, atol=1e-5)
    assert (along < -0.1).any() and (along > 1.1).any()  # beyond either end, too


# -- policy gradient ------------------------------------------------------------------------------


@jax.jit
def td3_climbs(state, policy, batches):
    """TD3's own update of the actor, with the critic held fast."""
    fresh = TD3.init(SPEC, KEY)
    hyper = state.hyper | {"learning_rate": jnp.float32(RATE)}
    params = state.params._replace(actor=policy)
    moving = state._replace(params=params, opt_state=fresh.opt_state, hyper=hyper)
    for batch in batches:
        gradients, _ = TD3.gradients(moving, batch, KEY, TD3.update_mask(0))
        after = TD3.apply(moving, gradients)
        params = params._replace(actor=after.params.actor)
        moving = moving._replace(params=params, opt_state=after.opt_state)
    return params.actor


def test_a_climb_is_td3s_own_update_of_the_actor(learner, experience, climbed):
    parents = policies(6)
    drawn = jax.jit(lambda key: sample_batch(TD3, BUFFER, learner.state, experience, key)[0])
    batches = [drawn(key) for key in np.asarray(jax.random.split(KEY, STEPS))]
    for row in range(3):
        wanted = td3_climbs(learner.state, row_of(parents, row), batches)
        got = row_of(climbed, row)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert not np.allclose(flat(climbed), flat(parents), atol=RATE / 2)


def test_all_offspring_climb(emitter, learner, experience, climbed):
    seen = experience.storage.observation[:, :20].reshape(-1, 2)

    @jax.jit
    @jax.vmap
    def liked(policy):
        return jnp.mean(emitter.td3.q_values(learner.state, seen, policy(seen))[0])

    assert (np.asarray(liked(climbed)) > np.asarray(liked(policies(6)))).all()


def test_the_greedy_actor_is_the_last_of_its_part(emitter, learner, experience):
    parents = policies(3)
    asked = jax.jit(emitter.ask)(learner, filled(parents), experience, KEY)
    assert {len(leaf) for leaf in jax.tree.leaves(asked)} == {GUIDED}
    assert bits(row_of(asked, -1)) == bits(learner.state.params.actor)
    others = flat(asked)[:-1]
    assert not any((child == parent).all() for child in others for parent in flat(parents))


def test_a_part_of_one_is_the_greedy_actor_alone(learner, experience):
    emitter = policy_gradient(size=1)
    asked = jax.jit(emitter.ask)(learner, filled(policies(3)), experience, KEY)
    assert bits(asked) == bits(learner.state.params.actor)
    assert {len(leaf) for leaf in jax.tree.leaves(asked)} == {1}


def test_no_steps_give_copies_of_elites(learner, experience):
    emitter = policy_gradient(policy_steps=0)
    parents = policies(3)
    asked = flat(jax.jit(emitter.ask)(learner, filled(parents), experience, KEY))[:-1]
    assert all((child == flat(parents)).all(axis=1).any() for child in asked)


def test_to_be_told_is_to_update_td3(emitter, experience, start, learner):
    td3, count = emitter.td3, CRITIC_STEPS
    assert count > td3.delays.period > 1, "some updates must leave the actor alone"
    told = learner
    one = jax.jit(lambda learner, index: updates(td3, BUFFER, learner, experience, index, 1)[0])
    single = start
    for index in range(count):
        single = one(single, jnp.int32(index))
    together = jax.jit(
        lambda learner: updates(td3, BUFFER, learner, experience, jnp.int32(0), count)[0]
    )
    for other in (single, together(start)):
        named = jax.tree_util.tree_flatten_with_path(told)[0]
        for (path, left), right in zip(named, jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6, err_msg=str(path))
    assert int(told.state.updates) == count
    assert bits(told.state.params.actor) != bits(start.state.params.actor)
    assert bits(told.state.targets.critic) != bits(start.state.targets.critic)


# -- together -------------------------------------------------------------------------------------


class Fixed(Emitter):
    """Gives the same again and again, and counts how often it was told."""

    def __init__(self, size, value):
        self.size, self.value = size, value

    def init(self, key):
        return 0

    def ask(self, state, repertoire, experience, key):
        return {"weight": jnp.full((self.size, 2), self.value + state)}

    def tell(self, state, experience):
        return state + 10 * self.value


def test_together_means_one_after_the_other():
    both = CombinedEmitter([Fixed(2, 1.0), Fixed(0, 5.0), Fixed(3, 2.0)])
    state, nothing = both.init(KEY), filled(policies(3))
    assert both.size == 5 and len(state) == 2
    assert both.ask(state, nothing, None, KEY)["weight"][:, 0].tolist() == [1, 1, 2, 2, 2]
    state = both.tell(state, None)
    assert both.ask(state, nothing, None, KEY)["weight"][:, 0].tolist() == [11, 11, 22, 22, 22]


def test_parts_do_not_draw_alike():
    parents = filled(policies(3))
    both = CombinedEmitter([IsoLine(4, 0.1, 0.1), IsoLine(4, 0.1, 0.1)])
    children = flat(jax.jit(both.ask)(both.init(KEY), parents, None, KEY))
    assert not np.allclose(children[:4], children[4:])


@pytest.mark.parametrize(
    ("share", "sizes"),
    [(0.0, [SIZE]), (0.25, [6, 2]), (0.5, [4, 4]), (1.0, [SIZE]), (0.01, [SIZE])],
)
def test_shares_of_a_generation(share, sizes):
    chosen = plan(gradient_share=share)
    parts = chosen.emitter.emitters
    assert [part.size for part in parts] == sizes and chosen.emitter.size == SIZE
    learns = share > 0.1
    assert chosen.learns is learns
    assert isinstance(parts[-1], PolicyGradient) is learns
    assert (
        jax.eval_shape(chosen.empty_state, KEY, chosen.cells()).experience is not None
    ) is learns
