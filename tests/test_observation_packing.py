import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.envs.spaces import spec_of
from understudy.errors import EnvironmentError
from understudy.observation_packing import Packer, can_cast, flat
from understudy.types import ArraySpec, Part

PICTURE = spaces.Box(0, 255, (3, 2), np.uint8)
PLANES = spaces.Box(0, 1, (2, 2, 3), np.bool_)
NUMBERS = [
    spaces.Box(-1, 1, (3,), np.float64),
    spaces.Box(-1, 1, (), np.float32),
    spaces.Box(-9, 9, (2,), np.int64),
    spaces.Box(-9, 9, (2, 2), np.float32),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Discrete(4, start=-1),
    spaces.MultiBinary(3),
    spaces.MultiDiscrete([3, 5]),
]
LEAVES = st.sampled_from([PICTURE, PLANES, *NUMBERS])
NAMES = st.text("ab/ é", min_size=1, max_size=4)
TREES = st.recursive(
    st.dictionaries(NAMES, LEAVES, min_size=1, max_size=4).map(spaces.Dict),
    lambda inner: st.dictionaries(NAMES, LEAVES | inner, min_size=1, max_size=3).map(spaces.Dict),
    max_leaves=3,
)


def packer_of(space: spaces.Space) -> Packer:
    return Packer(spec_of(space, spaces.Discrete(2)).observation)


def pack_one(packer: Packer, observation) -> np.ndarray:
    (packed,), was_single = packer.pack(observation)
    assert was_single
    return packed


def taken_apart(packed: np.ndarray, spec: ArraySpec) -> dict[str, np.ndarray]:
    """The other way round, by hand, from what `Part` and `ArraySpec` say."""
    data, entries = packed.tobytes(), {}
    for part in spec.parts:
        dtype = np.dtype(part.dtype)
        own, data = data[: part.size * dtype.itemsize], data[part.size * dtype.itemsize :]
        entries[part.name] = np.frombuffer(own, dtype).reshape(part.shape)
        if part.choices:
            (entries[part.name],) = np.flatnonzero(entries[part.name]) + part.start
    assert data == b""
    return entries


@settings(max_examples=150, deadline=None)
@given(TREES, st.integers(0, 1_000))
def test_what_is_packed_can_be_taken_apart(space, seed):
    names = list(flat(space))
    if len(set(names)) != len(list(leaves(space))):
        with pytest.raises(EnvironmentError, match="no two entries"):
            packer_of(space)
        return
    spec = spec_of(space, spaces.Discrete(2)).observation
    space.seed(seed)
    seen = [space.sample() for _ in range(3)]
    packer = Packer(spec)
    assert [part.name for part in spec.parts] == names
    for observation in seen:
        packed = pack_one(packer, observation)
        assert (packed.shape, packed.dtype) == (spec.shape, spec.dtype)
        entries = taken_apart(packed, spec)
        for name, value in flat(observation).items():
            np.testing.assert_array_equal(entries[name], np.asarray(value, entries[name].dtype))
    pictures = any(
        isinstance(leaf, spaces.Box) and leaf in (PICTURE, PLANES) for leaf in leaves(space)
    )
    assert spec.in_bytes == pictures
    together = {name: np.stack([flat(one)[name] for one in seen]) for name in names}
    batch, was_single = packer.pack(together)
    assert batch.shape == (3, *spec.shape) and not was_single
    assert batch.tobytes() == b"".join(pack_one(packer, one).tobytes() for one in seen)


def leaves(space: spaces.Space):
    if isinstance(space, spaces.Dict):
        for inner in space.values():
            yield from leaves(inner)
    else:
        yield space


def test_a_vector_worked_by_hand():
    spec = spec_of(
        spaces.Dict(
            [("z", spaces.Box(-9, 9, (2,))), ("a", spaces.Dict(b=spaces.Discrete(3, start=1)))]
        ),
        spaces.Discrete(2),
    ).observation
    parts = (Part("z", (2,), "float32"), Part("a/b", (3,), "float32", choices=3, start=1))
    assert spec == ArraySpec((5,), "float32", parts)
    packed = pack_one(Packer(spec), {"a": {"b": 2}, "z": [0.5, -7]})
    assert packed.tolist() == [0.5, -7, 0, 1, 0]


def test_bytes_worked_by_hand():
    space = spaces.Dict(eye=PICTURE, touch=spaces.Box(-1, 1, (1,)))
    spec = spec_of(space, spaces.Discrete(2)).observation
    assert spec.shape == (6 + 4,) and spec.dtype == "uint8"
    eye = np.arange(6, dtype=np.uint8).reshape(3, 2)
    packed = pack_one(Packer(spec), {"eye": eye, "touch": np.float64([0.25])})
    assert packed.tolist() == [*range(6), 0, 0, 0x80, 0x3E]


def test_a_choice_alone():
    packer = packer_of(spaces.Discrete(3, start=5))
    assert pack_one(packer, 6).tolist() == [0, 1, 0]
    assert packer.pack(np.array([5, 7]))[0].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert packer.pack(np.int64(7))[1] and not packer.pack([5])[1]


def test_the_same_from_json():
    spec = spec_of(spaces.Dict(a=PICTURE, b=NUMBERS[0], c=NUMBERS[5]), spaces.Discrete(2))
    stored = json.loads(json.dumps(dataclasses.asdict(spec.observation)))
    seen = {"a": np.ones((3, 2), np.uint8), "b": np.arange(3.0), "c": 2}
    ours, theirs = Packer(spec.observation), Packer(stored)
    assert pack_one(ours, seen).tobytes() == pack_one(theirs, seen).tobytes()
    plain = Packer({"shape": [2], "dtype": "float32"})  # written before there were parts
    assert plain.pack([[1, 2], [3, 4]])[0].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(EnvironmentError, match=r"take 34 places, its array has \(3,\)"):
        Packer(stored | {"shape": [3]})


TWO = spaces.Dict(eye=PICTURE, joints=spaces.Box(-1, 1, (3,)), mode=spaces.Discrete(2))
EYE = np.zeros((3, 2), np.uint8)


@pytest.mark.parametrize(
    ("space", "wrong", "message"),
    [
        (TWO, np.zeros(3), 'expected a dict with the entries "eye", "joints", "mode", got ndarray'),
        (TWO, {"eye": EYE, "mode": 0}, 'no entry "joints"; expected: "eye", "joints", "mode"'),
        (
            TWO,
            {"eye": EYE, "joints": np.zeros(2), "mode": 0},
            r"the observation's \"joints\" to have shape \(3,\), got \(2,\)",
        ),
        (
            TWO,
            {"eye": EYE / 255, "joints": np.zeros(3), "mode": 0},
            'the observation\'s "eye" to have dtype uint8, got float64',
        ),
        (
            TWO,
            {"eye": EYE, "joints": np.zeros(3), "mode": 2},
            'the observation\'s "mode" to be 0 to 1, got 2',
        ),
        (TWO, {"eye": EYE, "joints": [[0], [0, 1]], "mode": 0}, '"joints" is no array'),
        (TWO, {"eye": EYE, "joints": "abc", "mode": 0}, r'"joints" to have shape \(3,\)'),
        (spaces.Discrete(3), {"a": 1}, "expected the observation to be one array, got a dict"),
        (spaces.Discrete(3), 0.5, "the observation to have dtype int64, got float64"),
        (spaces.Box(-1, 1, (2,)), [1.0], r"the observation to have shape \(2,\), got \(1,\)"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(space, wrong, message):
    with pytest.raises(EnvironmentError, match=message) as told:
        packer_of(space).pack(wrong)
    assert "\n" not in str(told.value)


def test_rows_of_a_batch_must_agree():
    wrong = {"eye": np.stack([EYE] * 2), "joints": np.zeros((3, 3)), "mode": np.zeros(2, int)}
    with pytest.raises(EnvironmentError, match=r'"joints" to have shape \(2, 3\), got \(3, 3\)'):
        packer_of(TWO).pack(wrong)


def test_the_callers_arrays_are_neither_kept_nor_touched():
    seen = {"eye": EYE.copy(), "joints": np.arange(3, dtype=np.float32), "mode": 1}
    packed = pack_one(packer_of(TWO), seen)
    before = packed.tobytes()
    seen["joints"][:], seen["eye"][:] = 9, 9
    assert packed.tobytes() == before


@pytest.mark.processes
def test_no_jax_is_imported():
    code = "import sys, understudy.observation_packing; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


@pytest.mark.parametrize(
    ("given", "wanted", "may"),
    [
        ("float64", "float32", True),
        ("int64", "float32", True),
        ("uint8", "uint8", True),
        ("bool", "uint8", True),
        ("uint16", "uint8", False),  # 300 would become 44
        ("float32", "uint8", False),
        ("int64", "bool", False),
    ],
)
def test_what_may_be_cast(given, wanted, may):
    assert can_cast(np.dtype(given), np.dtype(wanted)) is may
