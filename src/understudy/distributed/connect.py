"""From an address to a Ray that answers, or to one line that says why not."""

import contextlib
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from typing import Any

from understudy.errors import import_extra
from understudy.types import ConfigError, UnderstudyError

OLDEST = (2, 54)
SECONDS_TO_ANSWER = 10.0
DEFAULT_PORT = 6379
TRIES = "RAY_gcs_server_port_wait_time_s"  # counts tries where a cluster is joined
# What a speaker of HTTP/2, as Ray's servers are, answers at once with settings of its own.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS = b"\x04"  # the fourth byte of such an answer
TRIES_TO_START = 2
OBJECT_STORE_BYTES = 512 * 2**20  # of a Ray that is started here: fragments and policies are small

_log = logging.getLogger("understudy.distributed")


def load_ray() -> Any:
    """The module, if it is here and new enough."""
    ray = import_extra("ray", "ray", "a cluster needs Ray")
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"a cluster needs Ray {oldest} or newer, this is {ray.__version__}: "
            'pip install --upgrade "understudy[ray]"'
        )
    return ray


def connect(address: str | None, cpus: float | int) -> Any:
    """Ray, joined at `address` or started here with (at least) so many cores to give away. One
    that this process has joined already is used as it is, unless another is asked for."""
    ray = load_ray()
    if ray.is_initialized():
        _check_it_is_the_same(ray, address)
        return ray
    quiet = dict(log_to_driver=False, configure_logging=False)
    with _said_clearly(address), warnings.catch_warnings():
        # Python warns of forks beside JAX's threads. Ray's are followed by exec at once.
        warnings.simplefilter("ignore", RuntimeWarning)
        if address is None:
            _start(ray, max(int(cpus + 1), os.cpu_count() or 1), quiet)
        else:
            _reach(address)
            with _asking_once():
                ray.init(address=address, **quiet)
    return ray


def _start(ray: Any, cpus: int, quiet: dict[str, bool]) -> None:
    """A Ray here. Beside other work it may be slow to start: then it is waited for once more."""
    # Ray gives its processes the lowest priority, with which they hardly start on a busy machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    for tries_left in reversed(range(TRIES_TO_START)):
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                dashboard_host="127.0.0.1",
                **quiet,
            )
            return
        except (OSError, RuntimeError, TimeoutError) as error:
            if not tries_left:
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _log.warning("Ray is slow to start here (%s): waiting for it", reason)
            ray.shutdown()


def _check_it_is_the_same(ray: Any, address: str | None) -> None:
    joined = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local", joined):
        with _said_clearly(address):
            _reach(address)
        raise ConfigError(
            f"this process has joined the Ray at {joined!r} already, and cannot join {address!r}: "
            "call ray.shutdown() first, or start another process"
        )


def _reach(address: str) -> None:
    """Ray itself would try for minutes."""
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit() or not host:
        raise ConfigError(
            f'a cluster\'s address is "auto" or "host:port" (Ray\'s own port is {DEFAULT_PORT}), '
            f"got {address!r}"
        )
    with socket.create_connection((host, int(port)), SECONDS_TO_ANSWER) as line:
        if os.environ.get("RAY_USE_TLS") == "1":  # not a word before the keys are settled
            return
        line.sendall(GREETING)
        if line.recv(9)[3:4] != SETTINGS:
            raise ConnectionError("whoever listens there is no Ray")


@contextlib.contextmanager
def _asking_once() -> Iterator[None]:
    """Ray itself would ask twenty times, unless its user says otherwise."""
    if TRIES in os.environ:
        yield
        return
    os.environ[TRIES] = "1"
    try:
        yield
    finally:
        del os.environ[TRIES]


@contextlib.contextmanager
def _said_clearly(address: str | None) -> Iterator[None]:
    try:
        yield
    except (ConnectionError, OSError, RuntimeError, TimeoutError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        where = "cannot be started here" if address is None else f"does not answer at {address!r}"
        hint = "" if address is None else "; start one with: ray start --head"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnderstudyError(f"Ray {where}: {reason}{hint}") from error


def cores(ray: Any) -> float:
    """That the whole cluster has."""
    return float(ray.cluster_resources().get("CPU", 0.0))
