"""The player as a distribution of its own: the modules of `understudy.runner`, NumPy, nothing else.

No test here needs a network: NumPy is the one of this environment.
"""

import ast
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import understudy
from tests.contracts.environments import OFFLINE, PIP, check_metadata, install, run
from tests.contracts.sources import PACKAGE, REPOSITORY, read
from tests.export.policy_cases import case
from understudy import runner
from understudy.runs.policy_file import save_policy

PROJECT = REPOSITORY / "player"
SETTINGS = tomllib.loads(read(PROJECT / "pyproject.toml"))
PLAY = """
import importlib.metadata, importlib.util, json, sys
import numpy as np
import understudy as us
import understudy.runner

def refusal(get):
    try:
        get()
    except ImportError as error:
        return str(error)

player = us.runner.load(sys.argv[1])
seen = np.load(sys.argv[2])
memory, actions = None, []
for row in seen:
    action, memory = player.act(row, memory)
    actions.append(action.tolist())
sampled, _ = player.act(seen, deterministic=False, rng=np.random.default_rng(0))
try:
    us.runner.load(sys.argv[2])
except us.UnderstudyError as error:
    damaged = str(error)
print(json.dumps({
    "file": us.__file__,
    "actions": actions,
    "sampled": sampled.tolist(),
    "damaged": damaged,
    "algorithm": player.about["algorithm"],
    "missing": [name for name in ("jax", "gymnasium", "safetensors", "scipy")
                if importlib.util.find_spec(name) is None],
    "refused": [refusal(lambda: us.SAC), refusal(lambda: us.load), refusal(lambda: us.networks)],
    "version": importlib.metadata.version("understudy-player"),
    "requires": importlib.metadata.requires("understudy-player"),
}))
"""


def imports_of(module: str, found: set[str]) -> set[str]:
    """Return the modules of the package that a module imports, itself and theirs among them."""
    found.add(module)
    for node in ast.walk(ast.parse(read(PACKAGE / f"{module}.py"))):
        assert not (isinstance(node, ast.ImportFrom) and node.level), "a relative import"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("understudy."):
            name = str(node.module).removeprefix("understudy.")
            if name not in found:
                imports_of(name, found)
    return found


def test_the_wheel_has_the_modules_that_the_runner_imports_and_no_other():
    wheel = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = wheel["force-include"]
    modules = imports_of("runner", {"__init__"})
    names = {f"{module}.py" for module in modules} | {"py.typed"}
    expected = {f"../src/understudy/{name}": f"understudy/{name}" for name in names}
    assert included == expected | {"../LICENSE": "understudy/LICENSE"}


def test_both_distributions_have_the_version_of_the_package():
    ours = tomllib.loads(read(REPOSITORY / "pyproject.toml"))
    for settings, folder in ((ours, REPOSITORY), (SETTINGS, PROJECT)):
        assert "version" in settings["project"]["dynamic"]
        place = folder / settings["tool"]["hatch"]["version"]["path"]
        assert place.resolve() == (PACKAGE / "__init__.py").resolve()
    for field in ("classifiers", "license", "requires-python", "urls"):
        assert ours["project"].get(field) == SETTINGS["project"].get(field)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that has the player's wheel and NumPy."""
    directory = tmp_path_factory.mktemp("robot")
    run(*PIP, "wheel", *OFFLINE, "--no-build-isolation", "-w", ".", PROJECT, cwd=directory)
    [wheel] = directory.glob("*.whl")
    assert wheel.name == f"understudy_player-{understudy.__version__}-py3-none-any.whl"
    check_metadata(wheel)
    commands, packages = install(wheel)
    numpy = Path(np.__file__).parent
    for part in (numpy, numpy.with_name("numpy.libs")):
        if part.exists():
            (packages / part.name).symlink_to(part, target_is_directory=True)
    return commands / "python"


@pytest.mark.processes
def test_the_wheel_plays_a_policy_without_jax(python, tmp_path):
    told = case("SAC, GRU")
    policy = save_policy(tmp_path / "policy.safetensors", told.describe())
    seen = told.observations(3)
    np.save(tmp_path / "seen.npy", seen)
    code = ("-I", "-c", PLAY, policy, tmp_path / "seen.npy")
    found = json.loads(run(python, *code, cwd=tmp_path))
    assert Path(found["file"]).is_relative_to(python.parents[1])  # not this repository
    assert found["missing"] == ["jax", "gymnasium", "safetensors", "scipy"]
    assert found["requires"] == ["numpy"] and found["version"] == understudy.__version__

    player, memory = runner.load(policy), None
    for row, action in zip(seen, found["actions"], strict=True):
        expected, memory = player.act(row, memory)
        np.testing.assert_array_equal(np.float32(action), expected)
    sampled, _ = player.act(seen, deterministic=False, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(np.float32(found["sampled"]), sampled)
    assert found["algorithm"] == "sac" and "no policy file" in found["damaged"]
    for name, refusal in zip(("SAC", "load", "networks"), found["refused"], strict=True):
        assert refusal.startswith(f"us.{name} is not in understudy-player, which only plays")
        assert refusal.endswith("then pip install understudy") and "\n" not in refusal


def test_a_missing_dependency_is_not_taken_for_a_missing_library(monkeypatch):
    monkeypatch.delitem(sys.modules, "understudy.sweep", raising=False)

    def lack(name):
        raise ModuleNotFoundError(f"No module named 'scipy' (for {name})", name="scipy")

    monkeypatch.setattr("understudy.importlib.import_module", lack)
    with pytest.raises(ModuleNotFoundError, match="No module named 'scipy'"):
        understudy.__getattr__("sweep")
