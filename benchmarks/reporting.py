"""Common parts of the measurements on the CPU: the machine and the format of results."""

import os
from pathlib import Path

BUSY = 0.5  # a load average above which the user is warned


def confine(cores: int) -> None:
    """Confine this process and those that it starts to that many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    if os.getloadavg()[0] > BUSY:
        print(f"warning: the machine is busy (load {os.getloadavg()[0]:.2f}); ratios will be noisy")


def hardware() -> dict[str, str]:
    described = dict(
        line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line
    )
    facts = {name.strip(): value.strip() for name, value in described.items()}
    vectors = [name for name in ("avx512f", "avx2") if name in facts.get("flags", "").split()]
    return {
        "CPU": facts.get("model name", "unknown") + (f" ({vectors[0]})" if vectors else ""),
        "cores used": str(len(os.sched_getaffinity(0))),
        "load before the start": f"{os.getloadavg()[0]:.2f}",
    }


def markdown_list(facts: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
