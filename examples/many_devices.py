"""Divide each batch among all devices of this machine: GPUs, or the one CPU."""

import jax

import understudy as us


def main(steps: int = 20_000) -> None:
    devices = us.Cluster(devices=jax.local_device_count())
    agent = us.SAC("jax:Pendulum-v1", seed=0, cluster=devices, batch_size=256)
    print(f"{jax.local_device_count()} × {jax.local_devices()[0].device_kind}")
    print(agent.train(steps))


if __name__ == "__main__":
    main()
