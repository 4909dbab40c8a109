"""Encoders that actor and critics share or do not share, of the library's or of the user's own."""

from functools import cache

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import understudy as us
from tests.algorithms.algorithm_cases import KEY, close, mapped, same
from understudy.algorithms import find
from understudy.algorithms.sac import losses
from understudy.algorithms.td3 import losses as td3_losses
from understudy.networks import Networks
from understudy.networks.encoders import SharedEncoder, share_encoder, with_observation_encoder
from understudy.ops.densities import row_normals
from understudy.types import ArraySpec, Batch, Continuous, Discrete, Spec

pytestmark = pytest.mark.agents

SPEC = Spec(ArraySpec((6, 6), "uint8"), Continuous((-1.0,) * 2, (1.0,) * 2, (2,)))
SMALL = dict(hidden_sizes=(4,), activation="tanh", encoder_features=5)
WITH_ACTORS = ("ddpg", "td3", "sac", "mpo")
TINY = dict(hidden_sizes=(8,), batch_size=8, buffer_size=64, start_steps=10, min_buffer_size=16)
QUIET = dict(progress=False, run=us.RunConfig(log_every=40, evaluate_every=0))
PLAIN, BOLD = 0.0, 3.0  # sizes of the add-on below


class Room(gymnasium.Env):
    """A picture beside a vector, both at random."""

    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (6, 6), np.uint8), speed=spaces.Box(-9.0, 9.0, (2,), np.float32)
    )
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action):
        self.time += 1
        return self._seen(), float(action[0]), False, self.time == 9, {}

    def _seen(self):
        speed = self.np_random.normal(size=2).astype(np.float32)
        return {"camera": self.np_random.integers(0, 256, (6, 6), np.uint8), "speed": speed}


def batch_of_pictures(size=5):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    def pictures():
        return jnp.asarray(rng.integers(0, 256, (size, 6, 6)), jnp.uint8)

    rewards, discounts = normal(size), jnp.full(size, 0.9)
    weights, rows = jnp.ones(size), jnp.asarray(np.arange(size), jnp.int32)
    action = jnp.asarray(np.tanh(rng.normal(size=(size, 2))), jnp.float32)
    return Batch(pictures(), action, rewards, discounts, pictures(), weights, rows)


def term(actor, observation):
    """It depends on all that the actor does."""
    return jnp.sum(jnp.sin(actor.mode(observation)))


@cache
def program_of(name, **settings):
    """A first state, and its gradients with the term above in the actor's loss, of any size: one
    program computes them with it and without."""
    sizes = []

    def addon(actor, batch, key):
        return sizes[-1] * term(actor, batch.observation), {}

    algorithm = find(name)
    made = algorithm(algorithm.config_class(**SMALL, **settings), loss_addons=(addon,))

    @jax.jit
    def gradients(state, size):
        sizes.append(size)
        return made.gradients(state, batch_of_pictures(), KEY, made.update_mask(0))[0].params

    return made.init(SPEC, KEY), gradients


@cache
def gradients_of(name, size=PLAIN, **settings):
    state, gradients = program_of(name, **settings)
    return state, gradients(state, jnp.float32(size))


@pytest.mark.parametrize(
    "name", [pytest.param("ddpg", marks=pytest.mark.slow), "td3", "sac", "mpo"]
)
def test_the_actors_gradient_stays_out_of_a_shared_encoder(name):
    state, plain = gradients_of(name)
    _, moved = gradients_of(name, BOLD)
    assert isinstance(state.params.actor.observation_encoder, SharedEncoder)
    close(plain.critic, moved.critic, 1e-6)
    assert not same(plain.actor, moved.actor)


@pytest.mark.parametrize("name", WITH_ACTORS)
def test_the_actors_gradient_goes_into_it_where_that_is_asked_for(name):
    state, plain = gradients_of(name, actor_trains_encoder=True)
    _, moved = gradients_of(name, BOLD, actor_trains_encoder=True)
    batch = batch_of_pictures()

    @jax.jit
    @jax.grad
    def alone(encoder):
        return BOLD * term(with_observation_encoder(state.params.actor, encoder), batch.observation)

    wanted = alone(state.params.critic.observation_encoder)
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(wanted)) > 1e-2
    added = mapped(np.subtract, moved.critic.observation_encoder, plain.critic.observation_encoder)
    close(added, wanted, 1e-4)
    close(plain.critic.members, moved.critic.members, 1e-6)


def test_both_gradients_are_summed():
    """SAC's, each by itself."""
    state, both = gradients_of("sac", actor_trains_encoder=True)
    batch = batch_of_pictures()

    @jax.jit
    def each(state):
        coeff = jnp.exp(state.params.temperature)
        noise = row_normals(jax.random.split(KEY, 3)[0], batch.row, 4)
        actor_noise, target_noise = jnp.split(noise, 2, axis=-1)
        actor = share_encoder(state.params.actor, state.params.critic)
        target = losses.critic_target(actor, state.targets.critic, batch, coeff, target_noise)

        def actor_loss(encoder):
            seeing = with_observation_encoder(state.params.actor, encoder)
            return losses.actor_loss(seeing, state.params.critic, batch, coeff, actor_noise)[0]

        of_critics = jax.grad(lambda c: losses.critic_loss(c, batch, target)[0])(
            state.params.critic
        )
        return of_critics.observation_encoder, jax.grad(actor_loss)(
            state.params.critic.observation_encoder
        )

    of_critics, of_actor = each(state)
    close(both.critic.observation_encoder, mapped(np.add, of_critics, of_actor), 1e-4)
    close(gradients_of("sac")[1].critic.observation_encoder, of_critics, 1e-4)
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(of_actor)) > 1e-3


@pytest.mark.parametrize("name", WITH_ACTORS)
def test_separate_encoders_begin_and_learn_by_themselves(name):
    state, plain = gradients_of(name, share_encoder=False)
    _, moved = gradients_of(name, BOLD, share_encoder=False)
    for ours, theirs in zip(
        *map(
            weights,
            (state.params.actor.observation_encoder, state.params.critic.observation_encoder),
        ),
        strict=True,
    ):
        assert ours.shape == theirs.shape and not np.allclose(ours, theirs)
    close(plain.critic, moved.critic, 1e-6)
    assert not same(plain.actor.observation_encoder, moved.actor.observation_encoder)


def weights(tree):
    """Without biases, which begin at zero."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if leaf.ndim > 1]


def changed(agent, steps):
    """Whether each array of the critics' encoder has moved after some training."""
    before = agent.get_weights()["critic"].observation_encoder
    agent.train(steps, **QUIET)
    after = agent.get_weights()["critic"].observation_encoder
    agent.close()
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return [bool((one != other).any()) for one, other in pairs]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        dict(memory="gru", sequence_length=4, burn_in=2),
        pytest.param({}, marks=pytest.mark.slow),
    ],
)
def test_the_entries_of_a_dict_are_learned_from_together(settings):
    config = us.TD3Config(**TINY, encoder_features=4, memory_size=4, **settings)
    agent = us.TD3(Room, config)
    moved = changed(agent, 40)
    assert moved and all(moved)
    seen, memory = Room().reset(seed=1)[0], (np.ones(4, np.float32),) if settings else ()

    def act(**entries):
        answer = agent.act(seen | entries, *memory)
        return answer[0] if memory else answer

    assert (act() != act(camera=255 - seen["camera"])).any()
    assert (act() != act(speed=-seen["speed"])).any()


class Own(eqx.Module):
    """A user's encoder, of one picture or of the entries of a dict; not of arrays alone."""

    layer: eqx.nn.Linear
    activation: object

    def __init__(self, spec, key):
        self.layer = eqx.nn.Linear(38 if spec.parts else 36, 3, key=key)
        self.activation = jax.nn.silu

    def __call__(self, observation):
        entries = observation if isinstance(observation, dict) else {"camera": observation}
        assert entries["camera"].shape == (6, 6) and entries["camera"].dtype == jnp.uint8
        flat = [entry.astype(jnp.float32).ravel() / 100.0 for entry in entries.values()]
        return self.activation(self.layer(jnp.concatenate(flat)))


def picture_alone():
    return gymnasium.wrappers.TransformObservation(
        Room(), lambda seen: seen["camera"], Room.observation_space["camera"]
    )


def test_an_encoder_of_ones_own_for_one_picture():
    """At the level of the algorithm: both of its arrays have a gradient, and nothing else is
    there."""
    algorithm = find("sac")
    made = algorithm(algorithm.config_class(**SMALL), networks=Networks(encoder=Own))

    @jax.jit
    def begin_and_learn(key):
        state = made.init(SPEC, key)
        gradients, _ = made.gradients(state, batch_of_pictures(), key, made.update_mask(0))
        return gradients.params.critic.observation_encoder

    gradients = jax.tree.leaves(begin_and_learn(KEY))
    assert len(gradients) == 2 and all(np.any(leaf != 0) for leaf in gradients)


@pytest.mark.slow
@pytest.mark.parametrize("env", [Room, picture_alone])
def test_an_encoder_of_ones_own(tmp_path, env):
    networks = Networks(encoder=Own)
    agent = us.SAC(env, us.SACConfig(**TINY), networks=networks)
    assert changed(agent, 40) == [True, True]  # its weight and its bias, and nothing else
    agent.save(tmp_path / "own")
    with pytest.raises(us.UnderstudyError, match="networks"):
        us.load(tmp_path / "own", env=env)
    again = us.load(tmp_path / "own", env=env, networks=networks)
    seen = env().reset(seed=1)[0]
    np.testing.assert_array_equal(again.act(seen), agent.act(seen))


@pytest.mark.slow
def test_addons_of_an_agent_that_remembers():
    config = us.SACConfig(**TINY, memory="gru", memory_size=4, sequence_length=4, burn_in=2)
    begin = find("sac")(config).init
    spec = Spec(ArraySpec((3,)), Continuous((-2.0,), (2.0,), (1,)))
    learned = jax.jit(lambda key: begin(spec, key))(jax.random.PRNGKey(1))
    # a teacher of large actions: who comes near to it does not keep its own small
    actor, critic, _ = learned.params
    loud = eqx.tree_at(lambda actor: actor.head.bias, actor, jnp.array([2.0, -1.0]))
    teacher = share_encoder(loud, critic)
    with pytest.raises(us.UnderstudyError, match=r"give understudy\.networks\.share_encoder"):
        us.kl_to_reference(actor, 1.0)
    sizes, distances = [], []
    for penalty, nearness in ((30.0, 0.0), (0.0, 30.0)):
        addons = (us.action_penalty(penalty), us.kl_to_reference(teacher, nearness))
        agent = us.SAC("jax:Pendulum-v1", config, loss_addons=addons)
        agent.set(learning_rate=1e-2)
        facts = agent.train(120, **QUIET).history[-1]
        sizes.append(facts["train/addon/action_square"])
        distances.append(facts["train/addon/reference_kl"])
        agent.close()
    assert 0.0 < sizes[0] < 0.5 * sizes[1]
    assert 0.0 < distances[1] < 0.5 * distances[0]


def test_rows_that_are_no_steps_do_not_dilute_a_mean():
    """Weights by hand: the largest becomes 1, then all are doubled, as half of the rows count."""
    algorithm = find("ddqn")(us.DDQNConfig(hidden_sizes=(4,)))
    spec = Spec(ArraySpec((6, 6), "uint8"), Discrete(2))
    batch = batch_of_pictures(4)._replace(weight=jnp.array([4.0, 0.0, 2.0, 0.0]))
    prepared = jax.jit(lambda key: algorithm.prepare(algorithm.init(spec, key), batch))(KEY)
    assert prepared.weight.tolist() == [2.0, 0.0, 1.0, 0.0]


def test_without_a_target_actor_the_actor_reads_the_encoder_that_learns():
    """The target critics read their own encoder."""
    settings = dict(policy_noise=0.0, target_networks="critics", num_critics=1)
    made = find("td3")(us.TD3Config(**SMALL, **settings))
    state = made.init(SPEC, KEY)._replace(targets=made.init(SPEC, jax.random.PRNGKey(1)).targets)

    @jax.jit
    def priorities(state):
        batch, (actor, critic) = batch_of_pictures(), state.params
        zero = jnp.float32(0.0)
        target = td3_losses.critic_target(
            share_encoder(actor, critic), state.targets.critic, batch, zero, zero, batch.action
        )
        _, error = td3_losses.critic_loss(critic, batch, target)
        got = made.gradients(state, batch, KEY, made.update_mask(0))[1].priorities
        return got, jnp.abs(error[0])

    got, want = priorities(state)
    np.testing.assert_allclose(got, want, rtol=1e-4)
