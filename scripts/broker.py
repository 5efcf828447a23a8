"""Start a message broker for tests, in a new folder and on free ports: broker.py rabbitmq.

An installed broker is used as it is. Otherwise apt-get downloads its Debian packages and this script unpacks them below
build/brokers: that needs no root and starts no service. ACKER_INSTALL_BROKERS=0 forbids the download.

As soon as the broker answers, one line of JSON on the standard output gives its URL, the folder of its commands, and
the folder that it writes to. When the standard input ends, the broker is stopped and its folder removed, so it does
not outlive the program that started it. Standard library only.

Exit codes: 0 stopped; 1 it did not start; 3 no broker is installed and none can be downloaded, with the reason.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

BROKERS = Path(__file__).resolve().parent.parent / "build/brokers"
UNAVAILABLE = 3

START_SECONDS = 180.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.05
# Below the ports that systems give to connections, so that no connection takes one before the broker does.
PORTS = range(20_000, 32_000)


class UnavailableError(Exception):
    """The broker is not here, and cannot be had; the text says why."""


class StartError(Exception):
    """The broker did not start; the text says what it wrote."""


class Running(NamedTuple):
    """A broker that answers."""

    url: str
    commands: Path  # a folder for PATH
    folder: Path


class Broker(NamedTuple):
    """Where a broker comes from, and how it is started."""

    package: str
    parts: tuple[str, ...]  # the beginnings of the names of the packages that are unpacked
    program: str  # below the root
    run: Callable[[Path, Path], contextlib.AbstractContextManager[Running]]


# ---- getting it -----------------------------------------------------------------------------------------------------


def find_or_unpack(name: str, environ: dict[str, str], root: Path | None = None) -> Path:
    """Return the root folder below which a broker's files lie: that of the system, or one for it alone.

    Raises
    ------
    UnavailableError
        There is none, and none can be downloaded.
    """
    broker = BROKERS_BY_NAME[name]
    roots = [root] if root is not None else [Path("/"), BROKERS / broker.package]
    for each in roots:
        if (each / broker.program).exists():
            return each
    if environ.get("ACKER_INSTALL_BROKERS", "1") in {"0", "no"}:
        raise UnavailableError(f"{name} is not here, and ACKER_INSTALL_BROKERS=0 forbids to download it")
    missing = [program for program in ("apt-get", "apt-cache", "dpkg-deb") if shutil.which(program) is None]
    if missing:
        raise UnavailableError(f"{name} is not here, and there is no {missing[0]} to download it with: install it")
    _unpack(broker, roots[-1])
    return roots[-1]


def _unpack(broker: Broker, root: Path) -> None:
    """Download the packages with lists of their own, which are fresh whatever the system's are."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{broker.package}-", dir=root.parent) as scratch:
        folder = Path(scratch)
        for each in ("lists/partial", "cache/archives/partial", "packages", "root"):
            (folder / each).mkdir(parents=True)
        settings = {
            "Dir::State::lists": folder / "lists",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "root",  # the user that it would change to cannot read this folder
            "Acquire::Retries": 3,
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        _apt(["apt-get", *options, "update"], folder)
        depends = ["apt-cache", *options, "depends", "--recurse", "--no-recommends", "--no-suggests"]
        listed = _apt([*depends, "--no-conflicts", "--no-breaks", "--no-replaces", broker.package], folder)
        names = sorted({line for line in listed.splitlines() if line.startswith(broker.parts)})
        if not names:
            raise UnavailableError(f"apt-cache knows no package {broker.package}")
        _apt(["apt-get", *options, "download", *names], folder / "packages")
        for package in sorted((folder / "packages").glob("*.deb")):
            _apt(["dpkg-deb", "-x", str(package), str(folder / "root")], folder)
        _relocate(folder / "root", root)
        with contextlib.suppress(OSError):  # another process may have been quicker
            (folder / "root").rename(root)
    if not (root / broker.program).exists():
        raise UnavailableError(f"the packages {', '.join(names)} hold no {broker.program}")


def _apt(command: list[str], folder: Path) -> str:
    if command[0] == "apt-get":  # the others take no time
        words = [word for word in command if "::" not in word and word != "-o"]
        print(f"==> {' '.join(words)}", file=sys.stderr, flush=True)
    environ = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, capture_output=True, check=False, cwd=folder, env=environ, stdin=subprocess.DEVNULL, text=True
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise UnavailableError(f"{command[0]} failed: {said}")
    return done.stdout


def _relocate(unpacked: Path, root: Path) -> None:
    """Let Erlang's scripts find their files below another root than that of the system."""
    for script in (*unpacked.glob("usr/lib/erlang/bin/*"), *unpacked.glob("usr/lib/erlang/erts-*/bin/*")):
        with contextlib.suppress(UnicodeDecodeError):  # a program
            text = script.read_text(encoding="utf-8")
            home = shlex.quote(f"{root}/usr/lib/erlang")
            script.write_text(re.sub(r"\bROOTDIR=/usr/lib/erlang\b", f"ROOTDIR={home}", text), encoding="utf-8")


# ---- running it -----------------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise StartError(f"no {count} ports are free in {PORTS}")


@contextlib.contextmanager
def spawn(command: list[Path | str], environ: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its children in a process group of their own, and end all of them."""
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        yield process
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)


def wait_for(process: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path) -> None:
    """Wait until a server answers.

    Raises
    ------
    StartError
        It ended, or it did not answer in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            what = "did not answer in time" if process.returncode is None else f"ended with {process.returncode}"
            told = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
            raise StartError(f"{process.args!r} {what}, and wrote:\n{told}")
        time.sleep(LOOK_SECONDS)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _answers_amqp(port: int) -> bool:
    """Ask as AMQP 0-9-1 does: the answer is a method frame on channel 0, which holds Connection.Start."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            answer = client.makefile("rb").read(11)
    except OSError:
        return False
    return answer[:3] == b"\x01\x00\x00" and answer[7:] == b"\x00\x0a\x00\x0a"


@contextlib.contextmanager
def rabbitmq(root: Path, folder: Path) -> Iterator[Running]:
    """Run RabbitMQ, with a node, a name server (epmd), and commands that know them."""
    port, distribution, names = free_ports(3)
    programs = root / "usr/lib/rabbitmq/bin"
    own = {
        "HOME": folder,  # of the cookie that node and commands share
        "LC_ALL": "C.UTF-8",
        "PATH": f"{root / 'usr/lib/erlang/bin'}:{programs}:{os.environ.get('PATH', os.defpath)}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": names,
        "RABBITMQ_NODENAME": f"acker-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": distribution,
        "RABBITMQ_MNESIA_BASE": folder / "data",
        "RABBITMQ_LOG_BASE": folder / "logs",
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONF_ENV_FILE": folder / "environment.conf",
        "RABBITMQ_CONFIG_FILE": folder / "rabbitmq.conf",
        "RABBITMQ_ADVANCED_CONFIG_FILE": folder / "advanced.config",
        "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
        # Else its threads use whole cores while they wait for work.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
    }
    environ = {**os.environ, **{name: str(value) for name, value in own.items()}}
    (folder / "environment.conf").touch()
    (folder / "rabbitmq.conf").write_text("disk_free_limit.absolute = 10MB\n")
    (folder / "plugins").write_text("[].\n")
    commands = folder / "commands"
    commands.mkdir()
    exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in own.items())
    for name in ("rabbitmqctl", "rabbitmq-diagnostics"):
        command = commands / name
        command.write_text(f'#!/bin/sh\n{exports}exec {shlex.quote(str(programs / name))} "$@"\n')
        command.chmod(0o755)
    log = folder / "log"
    with spawn([root / "usr/lib/erlang/bin/epmd"], environ, log) as epmd:
        wait_for(epmd, lambda: _accepts(names), log)
        with spawn([programs / "rabbitmq-server"], environ, log) as server:
            wait_for(server, lambda: _answers_amqp(port), log)
            yield Running(f"amqp://guest:guest@127.0.0.1:{port}/%2F", commands, folder)


BROKERS_BY_NAME = {
    "rabbitmq": Broker("rabbitmq-server", ("rabbitmq-", "erlang-"), "usr/lib/rabbitmq/bin/rabbitmq-server", rabbitmq)
}


def main() -> int:
    """Run a broker until the standard input ends, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("broker", choices=BROKERS_BY_NAME)
    parser.add_argument("--root", help="look and unpack below this folder only", type=Path)
    options = parser.parse_args()
    try:
        root = find_or_unpack(options.broker, dict(os.environ), options.root)
    except UnavailableError as why:
        print(why, file=sys.stderr)
        return UNAVAILABLE
    with tempfile.TemporaryDirectory(prefix=f"acker-{options.broker}-", ignore_cleanup_errors=True) as folder:
        try:
            with BROKERS_BY_NAME[options.broker].run(root, Path(folder)) as running:
                told = {name: str(value) for name, value in running._asdict().items()}
                print(json.dumps(told), flush=True)
                with contextlib.suppress(KeyboardInterrupt):
                    sys.stdin.buffer.read()
        except StartError as why:
            print(why, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it cleans up after itself
    sys.exit(main())
