"""Log numbers of your own: the value of the first state, and its error in each episode."""

import numpy as np

import understudy as us


class FirstValue(us.Callback):
    def on_episode(self, agent, episode):
        predicted = float(np.mean(agent.value(np.zeros((1, 4), np.float32))))
        agent.log("custom/value", predicted)  # the next row has the mean of all episodes
        agent.log("custom/value_error", predicted - episode.total_reward)


def main(steps: int = 20_000) -> None:
    agent = us.A2C("CartPole-v1", seed=0)
    history = agent.train(steps, callbacks=FirstValue()).history
    print([row.get("custom/value_error") for row in history])
    agent.close()


if __name__ == "__main__":
    main()
