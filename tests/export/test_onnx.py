"""An ONNX file does what the agent does, and says what it is."""

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.export.policy_cases import EVERY, LOPSIDED, REMEMBERING, assert_agree, case, make
from understudy.export.onnx import IR_VERSION, OPSET, export_onnx
from understudy.runner import Node
from understudy.types import ArraySpec, ConfigError, Part

pytestmark = pytest.mark.agents


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def fed(model, seen, memory=None):
    """By the names that the model has for its inputs."""
    given = seen if isinstance(seen, dict) else {"observation": seen}
    given = {"observation/action" if name == "action" else name: x for name, x in given.items()}
    given |= {} if memory is None else {"memory": memory}
    assert set(given) == {entry.name for entry in model.get_inputs()}
    return given


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind not in REMEMBERING])
def test_onnxruntime_agrees_with_the_agent(kind, tmp_path):
    path = export_onnx(tmp_path / "policy.onnx", case(kind).describe())
    model, seen = session(path), case(kind).observations()
    (action,) = model.run(["action"], fed(model, seen))
    assert_agree(case(kind), action, seen)
    one = {name: entry[:1] for name, entry in fed(model, seen).items()}
    (alone,) = model.run(None, one)  # the batch axis is free
    np.testing.assert_allclose(alone, action[:1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", REMEMBERING)
def test_onnxruntime_remembers_what_the_agent_does(kind, tmp_path):
    own = case(kind)
    model = session(export_onnx(tmp_path / "policy.onnx", own.describe()))
    assert [entry.name for entry in model.get_outputs()] == ["action", "next_memory"]
    width = own.algorithm.config.memory_width
    memory = np.zeros((len(own.act(own.observations())[0]), width), np.float32)
    for step in range(5):
        seen = own.observations(seed=step)
        action, after = model.run(["action", "next_memory"], fed(model, seen, memory))
        assert_agree(own, (action, after), seen, memory)
        memory = after


def test_every_entry_of_a_dict_is_an_input(tmp_path):
    path = export_onnx(tmp_path / "policy.onnx", case("MPO of a dict with images").describe())
    inputs = {entry.name: (entry.type, entry.shape) for entry in session(path).get_inputs()}
    assert inputs == {
        "eye": ("tensor(uint8)", ["batch", 8, 7, 3]),
        "arm/place": ("tensor(float)", ["batch", 2, 2]),
        "mode": ("tensor(int64)", ["batch"]),
        "map": ("tensor(bool)", ["batch", 5, 6]),
        "observation/action": ("tensor(float)", ["batch"]),  # `action` is the output
    }


def test_two_entries_never_have_one_name(tmp_path):
    parts = [Part(name, (1,), "float32") for name in ("action", "observation/action", "v0")]
    own = make("td3", LOPSIDED, {}, ArraySpec((3,), "float32", tuple(parts)))
    model = session(export_onnx(tmp_path / "policy.onnx", own.describe()))
    names = [entry.name for entry in model.get_inputs()]
    assert len(set(names)) == 3 and not {"action", "v0"} & set(names)
    seen = own.observations()
    (action,) = model.run(None, dict(zip(names, seen.values(), strict=True)))
    assert_agree(own, action, seen)


def test_what_it_says_about_itself(tmp_path):
    described = case("SAC").describe()
    path = export_onnx(tmp_path / "deep" / "policy.onnx", described)
    model = onnx.load(path)
    assert model.ir_version == IR_VERSION
    assert [(o.domain, o.version) for o in model.opset_import] == [("", OPSET)]
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(told["understudy.about"]) == described.about
    assert json.loads(told["understudy.spec"]) == described.spec
    assert (told["opset"], told["ir_version"]) == (str(OPSET), str(IR_VERSION))
    inputs, outputs = session(path).get_inputs(), session(path).get_outputs()
    assert [(i.name, i.shape) for i in inputs] == [("observation", ["batch", 3])]
    assert [(o.name, o.shape) for o in outputs] == [("action", ["batch", 2])]


def test_only_what_acting_needs_is_inside(tmp_path):
    model = onnx.load(export_onnx(tmp_path / "policy.onnx", case("SAC").describe()))
    names = {tensor.name for tensor in model.graph.initializer}
    assert "actor.mean.weight" in names and "actor.spread.weight" not in names


def test_an_unknown_operation_is_named_and_nothing_written(tmp_path):
    described = case("TD3").describe()
    first, *others = described.nodes
    strange = described._replace(nodes=(Node("attention", *first[1:]), *others))
    with pytest.raises(ConfigError, match="'attention'"):
        export_onnx(tmp_path / "policy.onnx", strange)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r'pip install "understudy\[onnx\]"'):
        export_onnx(tmp_path / "policy.onnx", case("TD3").describe())
