"""Files with random changes, signed correctly: success or a CheckpointError, and nothing else."""

import hashlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import understudy as us
from tests.faults.hostile_cases import GOOD, policy, train
from understudy import runner
from understudy.agent.manifest import parse
from understudy.errors import CheckpointError
from understudy.runs import checkpoint
from understudy.runs.policy_file import save_policy

pytestmark = pytest.mark.agents


@pytest.fixture
def run(tmp_path):
    return train(tmp_path / "run")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([-1, 10**400, "sac", 2**63, 1e308, [], {}]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def paths_in(tree, here=()):
    yield here
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for name, value in items:
        yield from paths_in(value, (*here, name))


def changed(tree, path, value, deed):
    """A copy with the value at a path replaced, removed, or something added beside it."""
    if not path:
        return value if deed == "replace" else tree
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    if len(path) > 1:
        copy[path[0]] = changed(copy[path[0]], path[1:], value, deed)
    elif deed == "remove":
        del copy[path[0]]
    elif deed == "add" and isinstance(copy, dict):
        copy[f"{path[0]}_"] = value
    else:
        copy[path[0]] = value
    return copy


class Outcomes(dict):
    """How often what came of it."""

    def note(self, attempt):
        try:
            attempt()
            name = "success"
        except CheckpointError:
            name = "CheckpointError"
        self[name] = self.get(name, 0) + 1


def change_manifests(run, count):
    stored = checkpoint.read_newest(run)
    plain = {name: value for name, value in stored.manifest.items() if name != "sha256"}
    places, outcomes = list(paths_in(plain)), Outcomes()

    @settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(places), VALUES, st.sampled_from(["replace", "remove", "add"]))
    def change(path, value, deed):
        wrong = changed(plain, path, value, deed)
        forged = wrong if isinstance(wrong, dict) else {"preset": wrong}
        outcomes.note(lambda: parse(stored._replace(manifest={**forged, "sha256": ""})))

    change()
    print(f"manifests: {outcomes}")
    assert set(outcomes) <= {"success", "CheckpointError"} and outcomes["CheckpointError"]


def change_files(path, read, count, header_only):
    data = path.read_bytes()
    most = 8 + int.from_bytes(data[:8], "little") if header_only else len(data)
    outcomes = Outcomes()

    @settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, most - 1), st.integers(0, 255), st.sampled_from(["set", "cut", "insert"]))
    def change(place, value, deed):
        byte = bytes([value])
        rest = {"set": data[place + 1 :], "cut": b"", "insert": data[place:]}[deed]
        path.write_bytes(data[:place] + byte + rest)
        outcomes.note(lambda: read(path))

    change()
    path.write_bytes(data)
    print(f"{path.name}: {outcomes}")
    assert set(outcomes) <= {"success", "CheckpointError"} and outcomes["CheckpointError"]


def read_unchecked(path):
    """A file of arrays whose size and checksum its manifest, forged as well, gives correctly."""
    data = path.read_bytes()
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return checkpoint.read_arrays(path, entry)


def read_resigned(path):
    """A policy file, whose own checksum is made to match."""
    data = path.read_bytes()
    found = data.find(b'\\"sha256\\": \\"')
    if found >= 0:
        written = data[found + 14 : found + 78]
        honest = runner.checksum_of(data, written.decode(errors="replace"))
        path.write_bytes(data.replace(written, honest.encode(), 1))
    return runner.load(path)


@pytest.mark.fault(57, "random changes end in success or in a CheckpointError")
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_changes(run, tmp_path, count):
    change_manifests(run, count)
    arrays = checkpoint.numbered(run)[-1] / "learner.safetensors"
    change_files(arrays, read_unchecked, count, header_only=True)
    path = save_policy(tmp_path / "policy.safetensors", policy(GOOD))
    change_files(path, read_resigned, count, header_only=False)


@pytest.mark.fault(57, "the same for whole runs")
def test_random_changes_of_whole_runs(run):
    places, outcomes = checkpoint.numbered(run), Outcomes()
    plain = json.loads((places[-1] / checkpoint.MANIFEST).read_text())
    paths = [path for path in paths_in(plain) if path and path[0] != "sha256"]

    @settings(max_examples=50, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(paths), VALUES, st.sampled_from(["replace", "remove", "add"]))
    def change(path, value, deed):
        manifest = changed(plain, path, value, deed)
        manifest["sha256"] = checkpoint.checksum(manifest)
        (places[-1] / checkpoint.MANIFEST).write_text(json.dumps(manifest))
        outcomes.note(lambda: us.load(run, env="Pendulum-v1").close())

    change()
    print(outcomes)
    assert set(outcomes) <= {"success", "CheckpointError"}
