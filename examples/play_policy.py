"""Export a trained policy to one file and run it in NumPy, as on a robot."""

import tempfile
from pathlib import Path

import gymnasium

import understudy as us
import understudy.runner


def train(path: Path, steps: int) -> None:
    agent = us.SAC("Pendulum-v1")
    agent.train(steps)
    agent.export(path)
    agent.close()


def play(path: Path) -> float:
    """Return the return of one episode. This function needs no JAX."""
    player, env = understudy.runner.load(path), gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(player.act(observation))
        total, over = total + float(reward), terminated or truncated
    env.close()
    return total


def main(steps: int = 10_000) -> None:
    path = Path(tempfile.mkdtemp()) / "policy.safetensors"
    train(path, steps)
    print(f"return: {play(path):.0f}")


if __name__ == "__main__":
    main()
