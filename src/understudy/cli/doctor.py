"""Show versions, devices, precision, the compilation cache and extras."""

import argparse
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from understudy.cli.parsing import Parser

CORE = ("jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "safetensors")
EXTRAS = ("cuda", "mujoco", "box2d", "atari", "minatar", "brax", "gymnax", "envpool", "onnx",
          "optuna", "ray", "video", "tensorboard", "wandb", "mlflow")  # fmt: skip
# Extras that do not have the name of the distribution that they install.
DISTRIBUTIONS = {"cuda": "jax-cuda13-plugin", "atari": "ale-py", "video": "imageio-ffmpeg",
                 "mlflow": "mlflow-skinny"}  # fmt: skip
TF32 = (
    "matrix products use TF32 on this GPU, which spoils training on some simulators; "
    "JAX_DEFAULT_MATMUL_PRECISION=highest computes in float32"
)


USAGE = "doctor [--json]"


def add_flags(parser: Parser, arguments: list[str]) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    found = examine()
    print(json.dumps(found) if options.json else "\n".join(_lines(found)))


def examine() -> dict[str, Any]:
    """Everything that the command shows."""
    import jax

    from understudy.training.compilation import set_up_compilation

    set_up_compilation()
    config: Any = jax.config  # declares its settings at run time
    cache, precision = config.jax_compilation_cache_dir, config.jax_default_matmul_precision
    devices = jax.devices()
    tf32 = devices[0].platform == "gpu" and precision in (None, "default", "tensorfloat32")
    return {
        "versions": {name: _version(name) for name in ("understudy", *CORE)}
        | {"python": platform.python_version()},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": _cores()},
        "devices": [f"{device.platform}: {device.device_kind}" for device in devices],
        "matmul_precision": precision or "default",
        "compilation_cache": cache,
        "compilation_cache_bytes": directory_size(Path(cache)) if cache else 0,
        "extras": {extra: _version(DISTRIBUTIONS.get(extra, extra)) for extra in EXTRAS},
        "warnings": [TF32] if tf32 else [],
    }


def _lines(found: dict[str, Any]) -> list[str]:
    versions, extras = found["versions"], found["extras"]
    missing = [extra for extra, version in extras.items() if version is None]
    cache, size = found["compilation_cache"], found["compilation_cache_bytes"]
    lines = [
        f"understudy     {versions['understudy']}, Python {versions['python']}",
        "versions       " + ", ".join(f"{name} {versions[name] or 'missing'}" for name in CORE),
        f"machine        {found['machine']['system']}, {found['machine']['cores']} cores",
        "devices        " + ", ".join(found["devices"]),
        f"precision      {found['matmul_precision']} (matrix products)",
        f"cache          {cache} ({size / 2**20:,.0f} MiB)" if cache else "cache          off",
        "extras         " + ", ".join(f"{x} {version}" for x, version in extras.items() if version),
    ]
    if missing:
        lines.append(f"not installed  {', '.join(missing)} (pip install 'understudy[NAME]')")
    return lines + [f"warning        {warning}" for warning in found["warnings"]]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def directory_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
