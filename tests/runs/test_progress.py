import io

import pytest
from rich.console import Console

from understudy.runs.progress import Progress, compact, seed_spread

FACTS = {
    "time/total_steps": 4_000,
    "time/fps": 300.0,
    "rollout/ep_rew_mean": -312.44,
    "rollout/ep_rew_per_seed": [-400.0, -120.51, float("nan")],
    "eval/mean_reward": -1520.0,
    "train/actor_loss": 3.0,
}


def console(terminal: bool, width: int = 100) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=width,
        color_system=None,
        _environ={"TERM": "xterm"},
    )


def text(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def test_without_a_terminal_there_is_one_plain_line_per_log():
    screen = console(terminal=False, width=40)
    with Progress(10_000, "SAC Pendulum-v1", console=screen) as progress:
        progress.update(FACTS)
        progress.update({"time/total_steps": 10_000})
    _, first, second = text(screen).splitlines()
    assert first == (
        "SAC Pendulum-v1 | 4,000/10,000 (40%) | return -312.4 | seeds -400.0 … -120.5 (of 3)"
        " | eval -1,520 | steps/s 300 | left 0:00:20"
    )
    # facts that were not given again keep their value
    assert "10,000/10,000 (100%) | return -312.4" in second and "left 0:00:00" in second
    assert "\x1b" not in text(screen)


def test_what_nobody_knows_yet_is_not_shown():
    screen = console(terminal=False)
    with Progress(1_000, "TD3", console=screen) as progress:
        progress.update({"time/total_steps": 10, "rollout/ep_rew_mean": float("nan")})
    assert text(screen) == "TD3 | compiling …\nTD3 | 10/1,000 (1%)\n"


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_shows_the_facts(width):
    screen = console(terminal=True, width=width)
    with Progress(10_000, "SAC Pendulum-v1", console=screen) as progress:
        progress.update(FACTS)
    shown = text(screen)
    for part in ("SAC Pendulum-v1", "40%", "4,000/10,000", "-312.4", "-400.0 … -120.5", "300"):
        assert part in shown
    assert "\x1b[?25h" in shown  # the cursor is given back


def test_the_cursor_is_given_back_after_an_error():
    screen = console(terminal=True)
    with (
        pytest.raises(RuntimeError, match="boom"),
        Progress(10, console=screen) as progress,
    ):
        progress.update({"time/total_steps": 5})
        raise RuntimeError("boom")
    assert "\x1b[?25h" in text(screen)


def test_a_title_with_brackets_is_shown_as_it_is():
    screen = console(terminal=True)
    with Progress(10, "SAC [red]Env[/x]", console=screen):
        pass
    assert "SAC [red]Env[/x]" in text(screen)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-1234.4, "-1,234"), (-152.34, "-152.3"), (0.516, "0.52"), (0.0, "0.00"), (1e6, "1,000,000")],
)
def test_compact_numbers(value, expected):
    assert compact(value) == expected


def test_the_spread_needs_several_seeds():
    assert seed_spread(None) == ""
    assert seed_spread([1.0]) == ""
    assert seed_spread([float("nan"), float("nan")]) == ""
    assert seed_spread([2.0, 1.0]) == "1.00 … 2.00 (of 2)"
