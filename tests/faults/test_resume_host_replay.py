"""Fault 30 where replay is on the host or on disk."""

import pytest

from tests.faults.resume_cases import Walk, compare
from tests.faults.seeing_cases import Picture

pytestmark = pytest.mark.agents

MEMORY = dict(memory="gru", memory_size=4, sequence_length=4, burn_in=2)


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.fault(30, "replay in the host's memory, and on disk")
@pytest.mark.parametrize(
    ("kind", "env", "settings"),
    [
        slow("DDQN", Picture, dict(replay_storage="host", frame_stack=3, num_seeds=2)),
        slow("TD3", Walk, dict(replay_storage="disk", num_envs=2, update_every=4)),
        slow("SAC", Walk, MEMORY | dict(replay_storage="disk", num_envs=2)),
    ],
    ids=["images", "vectors", "sequences"],
)
def test_replay_elsewhere_goes_on_to_the_bit(tmp_path, monkeypatch, kind, env, settings):
    large_files = tmp_path / "large"
    large_files.mkdir()
    monkeypatch.setenv("TMPDIR", str(large_files))
    compare(tmp_path, kind, env, again=env, **settings)
    assert not list(large_files.iterdir())
