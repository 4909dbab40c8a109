"""Use your own encoder: any Equinox module that takes one flat vector."""

import equinox as eqx
import jax

import understudy as us


class Residual(eqx.Module):
    """A layer, and a second one with a residual connection."""

    enter: eqx.nn.Linear
    refine: eqx.nn.Linear

    def __init__(self, inputs: int, key: jax.Array, width: int = 64):
        first, second = jax.random.split(key)
        self.enter = eqx.nn.Linear(inputs, width, key=first)
        self.refine = eqx.nn.Linear(width, width, key=second)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(self.enter(x))
        return hidden + jax.nn.relu(self.refine(hidden))


def main(steps: int = 10_000) -> None:
    networks = us.Networks(actor_encoder=Residual, critic_encoder=Residual)
    agent = us.SAC("Pendulum-v1", networks=networks)
    print(agent.train(steps))
    agent.close()


if __name__ == "__main__":
    main()
