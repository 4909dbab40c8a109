"""TD3 by its pure functions: a loop of your own around act, ring, gradients and apply."""

import jax
import jax.numpy as jnp

from understudy.algorithms.td3 import TD3, TD3Config
from understudy.buffers.replay import add, create, sample
from understudy.envs.native import Pendulum
from understudy.types import Transition


def main(steps: int = 3_000) -> None:
    td3, env = TD3(TD3Config(hidden_sizes=(64, 64), batch_size=64)), Pendulum()
    ring = create(env.spec, capacity=steps, lanes=1)
    state, key = td3.init(env.spec, jax.random.PRNGKey(0)), jax.random.PRNGKey(1)

    @jax.jit
    def iterate(state, ring, world, seen, index, key):
        keys = jax.random.split(key, 5)
        action = td3.act(td3.policy(state), (), seen[None], jnp.zeros(1, bool), keys[0], True)[0]
        after = env.step(world, action[0] * 2.0, keys[1])  # the real torque is in [-2, 2]
        over = after.terminated | after.truncated
        what = (seen, action[0], after.reward, after.terminated, over, after.observation)
        ring = add(ring, Transition(*(x[None] for x in what)), jnp.ones(1, bool))
        batch, _ = sample(ring, keys[2], 64, gamma=state.hyper["gamma"], reward_scale=jnp.ones(()))
        gradients, _ = td3.gradients(state, batch, keys[3], td3.due(index))
        fresh, going_on = env.reset(keys[4]), (after.state, after.observation)
        world, seen = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, going_on)
        return td3.apply(state, gradients), ring, world, seen, after.reward

    world, seen, rewards = *env.reset(key), []
    for index in range(steps):
        now = (index, jax.random.fold_in(key, index))
        state, ring, world, seen, reward = iterate(state, ring, world, seen, *now)
        rewards.append(reward)
    print(f"mean reward of the last 200 steps: {jnp.stack(rewards[-200:]).mean():.2f}")


if __name__ == "__main__":
    main()
