"""Control a robot at 50 Hz with a policy file, and with a safe action if something goes wrong."""

import time

import gymnasium

import understudy as us


def control(player, observe, send, safe, steps: int, rate: float = 50.0, clock=time):
    """Send an action every 1 / rate seconds: the safe one if the observation is missing or old, if
    the policy fails or is late. Return the worst lateness and the number of safe actions."""
    memory, worst, count, due = None, 0.0, 0, clock.monotonic() + 1 / rate
    for action in [safe] * steps:
        try:
            observation, measured_at = observe()
            if clock.monotonic() - measured_at <= 1 / rate:
                answer = player.act(observation, memory)
                action, memory = answer if player.memory_size else (answer, None)
        except Exception as error:  # the loop continues whatever a sensor does
            print(f"safe action: {error}")
        late = clock.monotonic() - due
        clock.sleep(max(0.0, -late))
        send(safe if late > 0 else action)
        worst, count = max(worst, late), count + (late > 0 or action is safe)
        due += (1 + max(0.0, late * rate // 1)) / rate  # without the periods that were missed
    send(safe)
    return worst, count


def main(steps: int = 100) -> None:
    us.SAC("Pendulum-v1").export("policy.safetensors")  # train it first; the loop needs no JAX
    env, player = gymnasium.make("Pendulum-v1").unwrapped, us.runner.load("policy.safetensors")
    seen = [env.reset(seed=0)[0]]
    send, observe = lambda u: seen.append(env.step(u)[0]), lambda: (seen[-1], time.monotonic())
    print(control(player, observe, send, safe=[0.0], steps=min(steps, 100)))


if __name__ == "__main__":
    main()
