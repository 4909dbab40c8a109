"""Install wheels in environments of their own, without a network."""

import os
import subprocess
import sys
import venv
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-index", "--no-deps")


def run(*command: object, cwd: Path) -> str:
    """Run a command that must succeed, and return what it prints."""
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_metadata(*distributions: Path) -> None:
    """Check that a package index would accept these distributions and show their READMEs."""
    command = (sys.executable, "-m", "twine", "check", "--strict")
    run(*command, *distributions, cwd=distributions[0].parent)


def install(wheel: Path) -> tuple[Path, Path]:
    """Make an environment beside a wheel that holds only this wheel. Return the directory of its
    commands and the one of its packages."""
    environment = wheel.parent / "environment"
    venv.create(environment, symlinks=os.name != "nt")
    commands = environment / ("Scripts" if os.name == "nt" else "bin")
    python = commands / "python"
    run(*PIP, "--python", python, "install", *OFFLINE, wheel, cwd=wheel.parent)
    code = "import site; print(site.getsitepackages()[-1])"
    return commands, Path(run(python, "-c", code, cwd=wheel.parent).strip())
