"""Draw a strip of frames of a trained policy: moments of one episode, side by side.

    MUJOCO_GL=egl python benchmarks/frame_strip.py RUN/policy.safetensors HalfCheetah-v5

The picture of the README, results/half_cheetah.png, shows the policy of
`understudy train sac HalfCheetah-v5 --steps 100000 --seed 5`. That of docs/logging.md,
results/hopper.png, shows `understudy train sac Hopper-v5 --steps 60000 --seed 0`, with `--first 10
--every 29`. That of PPO's README, results/walker2d.png, shows `understudy train ppo Walker2d-v5
--steps 1000000 --seed 10`, with `--every 8`. MUJOCO_GL=osmesa works, too.
"""

import argparse
from pathlib import Path

import gymnasium
import imageio.v3 as imageio
import numpy as np

from understudy import runner

RESULTS = Path(__file__).resolve().parent / "results"
GAP = 4  # white pixels between two frames
SIZE = (240, 150)  # width and height of a frame


def frames_of(player: runner.Player, env_id: str, first: int, every: int, count: int) -> list:
    """Play one episode; return `count` frames from step `first` on, `every` steps apart."""
    env = gymnasium.make(
        env_id, render_mode="rgb_array", width=SIZE[0], height=SIZE[1], camera_name="track"
    )
    observation, _ = env.reset(seed=0)
    frames = []
    for step in range(first + every * (count - 1) + 1):
        if step >= first and (step - first) % every == 0:
            frames.append(env.render())
        observation, _, terminated, truncated, _ = env.step(player.act(observation))
        if terminated or truncated:
            raise SystemExit(f"the episode ended after {step + 1} steps")
    env.close()
    return frames


def join(frames: list) -> np.ndarray:
    """Put frames side by side."""
    gap = np.full((frames[0].shape[0], GAP, 3), 255, np.uint8)
    parts = [part for frame in frames for part in (gap, frame)]
    return np.concatenate(parts[1:], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", type=Path, help="a policy.safetensors")
    parser.add_argument("env", help="the Gymnasium id of its environment")
    parser.add_argument("--out", type=Path, default=RESULTS / "half_cheetah.png")
    parser.add_argument("--first", type=int, default=200, help="step of the first frame")
    parser.add_argument("--every", type=int, default=2, help="steps between two frames")
    parser.add_argument("--count", type=int, default=6, help="frames")
    given = parser.parse_args()
    frames = frames_of(runner.load(given.policy), given.env, given.first, given.every, given.count)
    imageio.imwrite(given.out, join(frames))
    print(f"{given.out}: {given.out.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
