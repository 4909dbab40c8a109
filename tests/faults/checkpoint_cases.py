"""Small checkpoints, and what must be in them."""

import numpy as np

from understudy.runs import checkpoint

LEARNER = "learner.safetensors"


def arrays(scale=1.0):
    return {
        "weights.0": np.arange(6, dtype=np.float32).reshape(2, 3) * np.float32(scale),
        "weights.1": np.float32(0.1 * scale) * np.ones((), np.float32),
        "count": np.array(7, np.int32),
        "nothing": np.zeros((0, 4), np.float32),
        "key": np.array([1, 2**32 - 1], np.uint32),
    }


def save(place, scale=1.0, **manifest):
    groups = {"learner": arrays(scale), "world": {"ring": np.full(5, scale)}}
    return checkpoint.write(place, groups, manifest)


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        assert got[name].tobytes() == array.tobytes(), name


def assert_holds(place, scale):
    stored = checkpoint.read_newest(place)
    assert_same(stored.groups["learner"], arrays(scale))
    assert_same(stored.groups["world"], {"ring": np.full(5, scale)})
