"""Nothing of the three systems is missing: every entry of docs/names.md leads somewhere."""

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import io
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from understudy.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "names.md"
COLUMNS = ["their name", "here", "note"]


EASILY_FORGOTTEN = {
    "prt_rl": """
        mini_batch_size min_buffer_size steps_per_batch gradient_steps delay_freq num_critics
        critic_network use_log_entropy normalize_advantages metadata get_q_values
        get_target_q_values target_actor_action evaluate_actions actor_loss critic_loss value_loss
        entropy_loss loss entropy_coeff
    """,
    "QDax": """
        select_action play_step_fn play_qd_step_fn eval_policy_fn eval_qd_policy_fn
        descriptor_extraction_fn state_desc next_state_desc episode_length reward_scaling
        soft_tau_update policy_delay critic_hidden_layer_size policy_hidden_layer_size
    """,
    "PyTorchRL": """
        create_factory acting_step clipped_action rhs compute_loss compute_loss_q compute_loss_pi
        compute_loss_alpha errors compute_gradients apply_gradients set_weights
        update_algorithm_parameter polyak num_updates update_every start_steps test_every
        num_test_episodes target_update_interval initial_epsilon epsilon_decay initial_alpha lr_q
        lr_pi lr_alpha policy_loss_addons discrete_version dual_constraint kl_mean_constraint
        kl_var_constraint kl_constraint alpha_scale alpha_mean_scale alpha_var_scale
        alpha_mean_max alpha_var_max alpha_max mstep_iterations sample_action_num
    """,
}


class Row(NamedTuple):
    system: str
    line: int
    theirs: str
    here: str


def rows() -> list[Row]:
    """The tables of the page, one per system."""
    found, system = [], ""
    for line, text in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), start=1):
        if text.startswith("## "):
            system = text.removeprefix("## ")
        cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
        if text.startswith("|") and cells != COLUMNS and set(text) != set("|-"):
            assert len(cells) == len(COLUMNS), f"line {line} has {len(cells)} cells"
            found.append(Row(system, line, cells[0], cells[1]))
    return found


ROWS = rows()


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def mark(cell: str) -> str | None:
    """Why there is none, or nothing where the cell names places."""
    found = re.fullmatch(r"none: (.+)", cell)
    return found[1] if found else None


PLACES = {
    place: row.line for row in reversed(ROWS) if not mark(row.here) for place in quoted(row.here)
}


def resolve(place: str) -> None:
    """LookupError, naming the first part that is not there, unless the place exists."""
    if " --" in place:
        return _flag(place)
    path, colon, column = place.partition(": train/")
    if colon:
        return _column(path, column)
    path, bracket, argument = place.removesuffix(")").partition("(")
    thing = _thing(path)
    if bracket and argument not in inspect.signature(thing).parameters:
        raise LookupError(f"{path} has no argument {argument}")


def _thing(path: str) -> Any:
    """What a dotted path means to somebody who imports it: attributes go before modules, because
    asking for a module by its path would hide a function of the same name."""
    first, *others = path.split(".")
    if not _is_module(first):
        raise LookupError(f"no module {first}")
    thing: Any = importlib.import_module(first)
    for part in others:
        name, declared = getattr(thing, "__name__", str(thing)), _declared(thing)
        if hasattr(thing, part) or part in declared:
            thing = getattr(thing, part, declared.get(part))
        elif inspect.ismodule(thing) and _is_module(f"{name}.{part}"):
            thing = importlib.import_module(f"{name}.{part}")
        else:
            raise LookupError(f"{name} has no {part}")
    return thing


def _declared(thing: Any) -> dict[str, Any]:
    """What a class promises without giving it a value: fields and class variables."""
    classes = thing.__mro__ if inspect.isclass(thing) else ()
    promises = {
        name: kind for each in classes for name, kind in inspect.get_annotations(each).items()
    }
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    return promises | {field.name: field for field in fields}


def _is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:  # a parent is missing, or is no package
        return False


def _flag(place: str) -> None:
    """`understudy train td3 --tau`: a flag that the command's help shows."""
    program, *words, flag = place.split()
    if program != "understudy" or flag not in re.findall(r"--[\w-]+", _help(tuple(words))):
        raise LookupError(f"{program} {' '.join(words)} has no {flag}")


@cache
def _help(words: tuple[str, ...]) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):
        try:
            main([*words, "--help"])
        except SystemExit as exit:
            return shown.getvalue() if exit.code == 0 else ""
    return ""


def _column(package: str, column: str) -> None:
    """A metric that the algorithm's own files name, or the gradients that all share."""
    folder = Path(_thing(package).__file__).parent
    for page in (*folder.glob("*.py"), folder.parent / "gradients.py"):
        for node in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value == column:
                return
    raise LookupError(f"{package} logs no train/{column}")


@pytest.mark.parametrize("place", PLACES)
def test_place_exists(place):
    try:
        resolve(place)
    except LookupError as error:
        pytest.fail(f"names.md, line {PLACES[place]}: {error}")


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("understudy.algorithms.td3.TD3Config.policy_dely", "TD3Config has no policy_dely"),
        ("understudy.algorithms.td4.TD4Config", "understudy.algorithms has no td4"),
        ("understudy.agent.Agent.train(steeps)", "no argument steeps"),
        ("understudy train --steeps", "train has no --steeps"),
        ("understudy tran --steps", "tran has no --steps"),
        ("understudy train --step", "train has no --step"),
        ("understudy.algorithms.td3: train/ent_coef", "logs no train/ent_coef"),
        ("overstudy.agent", "no module overstudy"),
    ],
)
def test_a_wrong_place_is_noticed(place, problem):
    with pytest.raises(LookupError, match=re.escape(problem)):
        resolve(place)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line {row.line}")
def test_rows_are_complete(row):
    assert quoted(row.theirs), "a name of theirs stands in backticks"
    if not mark(row.here):  # nothing but places, in backticks, with commas between
        assert re.fullmatch(r"`understudy[^`]*`(, `understudy[^`]*`)*", row.here), row.here


def test_no_name_is_listed_twice():
    names = [
        (row.system, name, re.sub(r"(`[^`]*`[ ,]*)+", "", row.theirs))  # and where it is seen
        for row in ROWS
        for name in quoted(row.theirs)
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize("system", EASILY_FORGOTTEN)
def test_easily_forgotten_names_are_there(system):
    cells = [row.theirs for row in ROWS if row.system == system]
    listed = {word for cell in cells for name in quoted(cell) for word in re.findall(r"\w+", name)}
    assert set(EASILY_FORGOTTEN[system].split()) - listed == set()


def test_there_is_a_table_per_system():
    assert {row.system for row in ROWS} == set(EASILY_FORGOTTEN)
