"""Joining or starting Ray, with an error of one line if that fails."""

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
TRIES = "RAY_gcs_server_port_wait_time_s"  # Ray counts tries with it when it joins a cluster
# An HTTP/2 server, as Ray's servers are, answers this at once with its own settings.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS = b"\x04"  # the fourth byte of such an answer
TRIES_TO_START = 2
OBJECT_STORE_BYTES = 512 * 2**20  # of a Ray that is started here: chunks and policies are small

_log = logging.getLogger("understudy.distributed")


def load_ray() -> Any:
    """Import Ray, and refuse a version that is too old."""
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
    """Join the Ray at `address`, or start one here with at least so many cores, and return the
    module. A Ray that this process has joined is used, unless another address is given."""
    ray = load_ray()
    if ray.is_initialized():
        _check_it_is_the_same(ray, address)
        return ray
    quiet = dict(log_to_driver=False, configure_logging=False)
    with _explaining_errors(address), warnings.catch_warnings():
        # Python warns of forks beside JAX's threads. Ray's are followed by exec at once.
        warnings.simplefilter("ignore", RuntimeWarning)
        if address is None:
            _start(ray, max(int(cpus + 1), os.cpu_count() or 1), quiet)
        else:
            _reach(address)
            # Ray tries once to join, instead of twenty times, unless its user set a number.
            with environment_variables({TRIES: os.environ.get(TRIES, "1")}):
                ray.init(address=address, **quiet)
    return ray


def _start(ray: Any, cpus: int, quiet: dict[str, bool]) -> None:
    """Start Ray here. On a busy machine it may be slow to start, so it has a second try."""
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
            _log.warning("Ray is slow to start here (%s): waiting for it", first_line(error))
            ray.shutdown()


def _check_it_is_the_same(ray: Any, address: str | None) -> None:
    joined = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local", joined):
        with _explaining_errors(address):
            _reach(address)
        raise ConfigError(
            f"this process has joined the Ray at {joined!r} already, and cannot join {address!r}: "
            "call ray.shutdown() first, or start another process"
        )


def _reach(address: str) -> None:
    """Test within seconds that a Ray listens at an address: Ray itself tries for minutes."""
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit() or not host:
        raise ConfigError(
            f'a cluster\'s address is "auto" or "host:port" (Ray\'s own port is {DEFAULT_PORT}), '
            f"got {address!r}"
        )
    with socket.create_connection((host, int(port)), SECONDS_TO_ANSWER) as connection:
        if os.environ.get("RAY_USE_TLS") == "1":  # it answers nothing before the TLS handshake
            return
        connection.sendall(GREETING)
        if connection.recv(9)[3:4] != SETTINGS:
            raise ConnectionError("the server that listens there is no Ray")


@contextlib.contextmanager
def environment_variables(settings: dict[str, str]) -> Iterator[None]:
    """Set environment variables of this process, and restore them afterwards."""
    before = {name: os.environ[name] for name in settings if name in os.environ}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextlib.contextmanager
def _explaining_errors(address: str | None) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        where = "cannot be started here" if address is None else f"does not answer at {address!r}"
        hint = "" if address is None else "; start one with: ray start --head"
        raise UnderstudyError(f"Ray {where}: {first_line(error)}{hint}") from error


def cores(ray: Any) -> float:
    """Return the number of cores of the whole cluster."""
    return float(ray.cluster_resources().get("CPU", 0.0))


def send_recipe(ray: Any, role: str, recipe: Any) -> list[Any]:
    """Put what the processes are made from where they can read it (`supervisor.read_recipe`)."""
    try:
        return [ray.put(recipe)]
    except ray.exceptions.RayError:
        raise
    except Exception as error:  # pickling runs code of the user's objects
        raise ConfigError(
            f"this cannot be sent to a {role}: an environment, a descriptor, a network or a loss "
            "add-on holds what cannot be copied to another process; give an environment id, or a "
            f"callable that makes one ({type(error).__name__}: {first_line(error)})"
        ) from error


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
