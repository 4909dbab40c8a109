import pytest

from understudy.agent.training import TrainableAgent
from understudy.runs.run_directory import RunDirectory


@pytest.fixture
def saved(monkeypatch):
    """The steps at which runs were asked to save. Pictures are not drawn."""
    steps, save = [], RunDirectory.checkpoint

    def checkpoint(directory):
        steps.append(directory.trainable.count)
        save(directory)

    monkeypatch.setattr(RunDirectory, "checkpoint", checkpoint)
    monkeypatch.setattr(TrainableAgent, "draw", lambda *_: None)
    return steps
