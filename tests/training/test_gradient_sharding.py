"""The shares of an update make the same update as the whole; no process but this one."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.distributed.shared_updates import (
    close,
    in_one_process,
    make_experience,
    make_learner,
    make_setup,
)
from understudy.buffers import sum_tree
from understudy.training.gradient_sharding import (
    BatchSharding,
    check_shares,
    split_batch,
    still_stored,
)
from understudy.training.learner import observe_rollout
from understudy.training.seed_axis import over_seeds
from understudy.training.update import sample_inputs
from understudy.types import ConfigError

pytestmark = pytest.mark.agents

KINDS = {
    "sac": ("sac", {}),
    "td3": ("td3", {}),
    "ddqn": ("ddqn", dict(prioritized=True, target_update_interval=2)),
    "mpo": ("mpo", {}),
    "categorical": ("ddqn", dict(prioritized=True, critic_head="categorical", num_atoms=5)),
    "quantile": ("sac", dict(critic_head="quantile", num_quantiles=3, drop_quantiles=1,
                             normalize_rewards=True, return_limit=5.0)),
    "resetting": ("ddpg", dict(reset_every=2)),
    "a2c": ("a2c", dict(horizon=6, normalize_advantages=True)),
    "pqn": ("pqn", dict(horizon=6, epochs=1, minibatches=1)),
    "reppo": ("reppo", dict(horizon=6, epochs=1, minibatches=1, num_atoms=5)),
    "sequences": ("ddqn", dict(prioritized=True, memory="gru", memory_size=4, sequence_length=3,
                               burn_in=1, sequence_stride=1)),
    "remembering": ("a2c", dict(horizon=6, memory="gru", memory_size=4)),
}  # fmt: skip


@cache
def case(kind, members=1):
    name, settings = KINDS[kind]
    setup = make_setup(name, members, **settings)
    steps = settings.get("horizon", 8)
    return setup, make_learner(setup), make_experience(setup, steps), BatchSharding(setup)


@cache
def programs(kind, members):
    setup, _, _, shares = case(kind, members)
    return (
        jax.jit(over_seeds(partial(sample_inputs, setup.algorithm, setup.buffer), members)),
        jax.jit(shares.send, static_argnums=2),
        jax.jit(shares.answer, static_argnums=3),
        jax.jit(shares.receive, static_argnums=4),
    )


def shared(kind, count, index, members=1, order=None):
    """One update in `count` shares, computed one after the other."""
    setup, learner, experience, _ = case(kind, members)
    draw, send, answer, receive = programs(kind, members)
    now, mask = draw(learner.state, experience), setup.algorithm.update_mask(index)
    sent, parts = jax.device_get(send(learner.state, now.batch, count))
    answers = [answer(sent, part, now.key, mask) for part in parts]
    answers = answers if order is None else [answers[place] for place in order]
    learner, priorities = receive(answers, learner, experience, now, mask)
    observe = partial(observe_rollout, setup.algorithm, setup.buffer)  # for REPPO
    return over_seeds(observe, members)(learner, experience), priorities


@cache
def whole(kind, index, members=1):
    """The same update in one process: learner and priorities."""
    setup, learner, experience, _ = case(kind, members)
    return in_one_process(setup, learner, experience, index, 1)


# Delayed parts are due at index 0, and not at index 1.
QUICK = {("td3", 1), ("a2c", 0), ("resetting", 1)}
CASES = [
    pytest.param(kind, index, marks=() if (kind, index) in QUICK else pytest.mark.slow)
    for kind in KINDS
    for index in (0, 1)
]


@pytest.mark.parametrize(("kind", "index"), CASES)
def test_shares_make_the_update_of_the_whole(kind, index):
    learner = case(kind)[1]
    one, priorities = whole(kind, index)
    several, revised = shared(kind, 2, index)
    for name in set(one.state._fields) - {"key"}:
        close(getattr(several.state, name), getattr(one.state, name))
    assert np.array_equal(several.state.key, one.state.key)
    close(revised, priorities)
    before = jax.tree.leaves(learner.state.params.critic)
    assert not any(map(np.array_equal, before, jax.tree.leaves(several.state.params.critic)))


@pytest.mark.parametrize("count", [1, 3, 6])  # and 2, above
def test_any_number_of_equal_shares(count):
    one, priorities = whole("ddqn", 0)
    several, revised = shared("ddqn", count, 0)
    close(several.state, one.state)
    close(several.meter, one.meter, 1e-4)
    close(revised, priorities)


def test_priorities_belong_to_their_rows():
    """Exchanged answers have the same mean, but errors that are not their rows'."""
    in_order, right = shared("ddqn", 2, 0)
    exchanged, wrong = shared("ddqn", 2, 0, order=[1, 0])
    close(exchanged.state, in_order.state)
    assert right is not None and wrong is not None
    assert not np.allclose(right.tree.levels[-1], wrong.tree.levels[-1], atol=1e-4)


@pytest.mark.slow
def test_members_have_shares_of_their_own():
    one, _ = whole("td3", 0, members=2)
    close(shared("td3", 3, 0, members=2)[0].state, one.state)


def test_what_is_sent_is_what_gradients_read():
    """Not the optimizers' moments."""
    _, learner, _, shares = case("sac")
    batch = {"row": jnp.zeros((1, 4))}
    sent, _ = shares.send(learner.state, batch, 2)
    state = learner.state._replace(opt_state={})
    assert sum(x.size for x in sent.values()) == sum(x.size for x in jax.tree.leaves(state))


def test_an_update_that_is_not_finite_is_discarded_as_a_whole():
    setup, learner, experience, _ = case("ddqn")
    draw, send, answer, receive = programs("ddqn", 1)
    now, mask = draw(learner.state, experience), setup.algorithm.update_mask(0)
    sent, parts = jax.device_get(send(learner.state, now.batch, 2))
    answers = [answer(sent, part, now.key, mask) for part in parts]
    answers[1] = {dtype: x * np.nan for dtype, x in answers[1].items()}
    after, priorities = receive(answers, learner, experience, now, mask)
    assert int(after.meter.discarded[0]) == 1
    close(after.state._replace(key=0), learner.state._replace(key=0), 0)
    close(priorities, experience.priorities, 0)


def test_a_late_priority_does_not_bring_back_what_cannot_be_drawn():
    _, _, experience, _ = case("ddqn")
    replay = jax.tree.map(lambda x: x[0], experience)
    slots = replay.storage.reward.shape[1]
    free = int(replay.cursor[0])
    assert sum_tree.read(replay.priorities.tree, jnp.array([free]))[0] == 0
    place = jnp.array([free, 0, slots], jnp.int32)  # the free slot, and the first of two lanes
    late = np.asarray(still_stored(replay.priorities, place))
    assert late[0] >= replay.priorities.tree.levels[-1].size
    assert np.array_equal(late[1:], place[1:])


def test_rows_of_a_share_keep_their_order_and_their_names():
    batch = {"row": jnp.arange(12), "sequence": jnp.arange(4) * 3}
    parts = split_batch(batch, 2)
    assert [list(part["row"]) for part in parts] == [list(range(6)), list(range(6, 12))]
    assert [list(part["sequence"]) for part in parts] == [[0, 3], [6, 9]]


@pytest.mark.parametrize(
    ("kind", "workers", "words"),
    [
        ("sac", 5, "batch_size 12 cannot be shared by 5 gradient workers"),
        ("sequences", 5, "batch_size 12 cannot be shared by 5"),
        ("a2c", 5, "a minibatch of 24 steps cannot be shared by 5"),
        ("remembering", 3, "a minibatch of 4 environments cannot be shared by 3"),
    ],
)
def test_batches_that_cannot_be_divided_are_refused(kind, workers, words):
    name, settings = KINDS[kind]
    setup = make_setup(name, **settings)
    check_shares(setup, 2)
    with pytest.raises(ConfigError, match=words):
        check_shares(setup, workers)
