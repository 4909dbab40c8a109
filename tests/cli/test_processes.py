"""What only a process of its own can show: signals, pipes, closed streams."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes
COMMAND = [sys.executable, "-m", "understudy.cli"]


@pytest.mark.fault(34, "Ctrl-C and SIGTERM: a checkpoint, exit code 130 or 143, then resume")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_ends_a_run_that_can_go_on(run, tiny, tmp_path, number, code):
    words = [
        "train",
        "sac",
        "Pendulum-v1",
        "--steps",
        "1e9",
        "--run",
        "run",
        "--log-every",
        "100",
        "--evaluate-every",
        "0",
    ]
    flags = [flag for flag in tiny if flag != "--quiet"]
    with subprocess.Popen(
        [*COMMAND, *words, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline() == "SAC on Pendulum-v1 | compiling …\n"
            assert "SAC on Pendulum-v1 | 100/" in process.stderr.readline()
            process.send_signal(number)
            _, err = process.communicate(timeout=300)  # against a hang only
        finally:
            process.kill()
    assert process.returncode == code
    assert err.splitlines()[-1].endswith("steps; go on with: understudy resume run")
    assert "Traceback" not in err
    [newest] = (tmp_path / "run" / "checkpoints").iterdir()
    done = int(newest.name)
    assert done >= 100 and f"interrupted at {done:,} of 1,000,000,000 steps" in err
    found, out, _ = run("resume", "run", "--steps", done + 30, "--quiet")
    assert found == 0 and f"going on at {done:,} of {done + 30:,} steps" in out


def test_a_module_in_the_working_directory_is_found(tmp_path):
    """The script that pip installs does not have this directory on its path; neither has -P."""
    (tmp_path / "mine.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gym.register('Mine-v0', PendulumEnv, max_episode_steps=5)\n"
    )
    script = "from understudy.cli import entry; entry()"
    words = ["train", "sac", "mine:Mine-v0", "--env-arg", "g=5", "--print-config"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert 'env = "mine:Mine-v0"' in done.stdout and done.stdout.endswith("[env_args]\ng = 5\n")


@pytest.mark.slow
@pytest.mark.fault(38, "a run works without a terminal and with a closed stdin")
def test_without_a_terminal_and_with_closed_stdin(tmp_path, tiny):
    """The first file that is opened then gets the number 0, which workers inherit."""
    words = [
        "train",
        "sac",
        "Pendulum-v1",
        "--steps",
        "60",
        "--run",
        "run",
        "--env-workers",
        "1",
    ]
    flags = [flag for flag in tiny if flag != "--quiet"]
    shell = ["sh", "-c", 'exec "$@" <&-', "sh"]
    process = subprocess.run(
        [*shell, *COMMAND, *words, *flags], capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1].startswith("next: understudy eval run")
    lines = process.stderr.splitlines()  # and no bar
    assert lines[0] == "SAC on Pendulum-v1 | compiling …"
    assert lines[1].startswith("SAC on Pendulum-v1 | 60/60 (100%)")
    assert process.stderr.count("\n") == 2


def test_a_reader_who_leaves_is_no_error():
    with subprocess.Popen(
        [*COMMAND, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_importing_the_package_does_not_import_jax():
    code = "import sys, understudy as us, understudy.cli; dir(us); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
