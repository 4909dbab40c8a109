"""Train TD3 with its pure functions: a loop around act, replay, gradients and apply."""

import jax
import jax.numpy as jnp

from understudy.algorithms.td3 import TD3, TD3Config
from understudy.buffers import ReplayBuffer
from understudy.envs.native import Pendulum
from understudy.types import Chunk, Step


def main(steps: int = 3_000) -> None:
    td3, env = TD3(TD3Config(hidden_sizes=(64, 64), batch_size=64)), Pendulum()
    buffer, key = ReplayBuffer(env.spec, steps, lanes=1, batch_size=64), jax.random.PRNGKey(1)
    state, replay = td3.init(env.spec, jax.random.PRNGKey(0)), buffer.init()

    @jax.jit
    def iterate(state, replay, world, seen, index, key):
        keys = jax.random.split(key, 5)
        action = td3.act(td3.policy(state), (), seen[None], jnp.zeros(1, bool), keys[0], True)[0]
        after = env.step(world, action[0] * 2.0, keys[1])  # the real torque is in [-2, 2]
        over = after.terminated | after.truncated
        what = (seen, action[0], after.reward, after.terminated, over, after.observation)
        chunk = Chunk.of_one_step(Step(*(x[None] for x in what)), jnp.ones(1, bool))
        replay = buffer.add(replay, chunk)
        batch, _ = buffer.sample(replay, keys[2], state.hyper)
        gradients, _ = td3.gradients(state, batch, keys[3], td3.update_mask(index))
        fresh, going_on = env.reset(keys[4]), (after.state, after.observation)
        world, seen = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, going_on)
        return td3.apply(state, gradients), replay, world, seen, after.reward

    world, seen, rewards = *env.reset(key), []
    for index, now in enumerate(jax.random.split(key, steps)):
        state, replay, world, seen, reward = iterate(state, replay, world, seen, index, now)
        rewards.append(reward)
    print(f"mean reward of the last 200 steps: {jnp.stack(rewards[-200:]).mean():.2f}")


if __name__ == "__main__":
    main()
