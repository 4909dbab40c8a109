"""Evaluate a policy as papers do, export it to ONNX, and compare both."""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import understudy as us


def main(steps: int = 20_000) -> None:
    agent = us.SAC("jax:Pendulum-v1", seed=0)
    agent.train(steps)
    result = agent.evaluate(episodes=20, seed=100)  # new episodes, without exploration noise
    print(f"mean {result['mean']:.1f}, IQM {result['iqm']:.1f}, interval {result['ci95']}")
    noisy = agent.evaluate(episodes=20, seed=100, deterministic=False)
    print(f"with exploration: {noisy['mean']:.1f}")

    path = Path(tempfile.mkdtemp()) / "policy.onnx"
    agent.export(path)  # with the bounds of the actions and the normalizer
    session = onnxruntime.InferenceSession(path)
    seen = np.array([[1.0, 0.0, 0.1]], np.float32)
    (action,) = session.run(["action"], {"observation": seen})
    print(f"ONNX {action[0]}, agent {agent.act(seen[0])}")


if __name__ == "__main__":
    main()
