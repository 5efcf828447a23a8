"""RabbitMQ: a node, its name server (epmd), and commands that know both."""

import os
import shlex
from pathlib import Path

from brokers.packages import Packages, library_path
from brokers.server import Server, exchange

# Lets the node evaluate an expression of Erlang, and prints the value. rabbitmqctl can, too, but it starts an Erlang of
# its own for that, which takes seconds.
EVALUATE = """\
answer=$(printf '%s.\\n' "$1" | erl_call -c "$(cat "$HOME/.erlang.cookie")" -sname "$RABBITMQ_NODENAME" -e) || exit
case $answer in
    "{ok, "*"}") answer=${answer#"{ok, "} && printf '%s\\n' "${answer%\\}}" ;;
    *) printf '%s\\n' "$answer" >&2 && exit 1 ;;
esac
"""


class RabbitMQ(Server):
    """RabbitMQ; queues that are durable, with messages that are persistent, outlive its process."""

    origin = Packages("rabbitmq", "rabbitmq-server", ("rabbitmq-", "erlang-"), "usr/lib/rabbitmq/bin/rabbitmq-server")
    ports_count = 3

    @property
    def url(self) -> str:
        """Of AMQP 0-9-1."""
        return f"amqp://guest:guest@127.0.0.1:{self.ports[0]}/%2F"

    def facts(self) -> dict[str, object]:
        """Return a folder for PATH."""
        return {"commands": str(self.folder / "commands")}

    def prepare(self) -> None:
        """Write its settings, and start the name server."""
        port, distribution, names = self.ports
        programs = self.root / "usr/lib/rabbitmq/bin"
        own = {
            **library_path(self.root),
            "HOME": self.folder,  # of the cookie that node and commands share
            "LC_ALL": "C.UTF-8",
            "PATH": f"{self.root / 'usr/lib/erlang/bin'}:{programs}:{os.environ.get('PATH', os.defpath)}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": names,
            "RABBITMQ_NODENAME": f"acker-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": port,
            "RABBITMQ_DIST_PORT": distribution,
            "RABBITMQ_MNESIA_BASE": self.folder / "data",
            "RABBITMQ_LOG_BASE": self.folder / "logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONF_ENV_FILE": self.folder / "environment.conf",
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": self.folder / "advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            # Else its threads use whole cores while they wait for work.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }
        self.environ |= {name: str(value) for name, value in own.items()}
        (self.folder / "environment.conf").touch()
        (self.folder / "rabbitmq.conf").write_text("disk_free_limit.absolute = 10MB\n")
        (self.folder / "plugins").write_text("[].\n")
        commands = self.folder / "commands"
        commands.mkdir()
        exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in own.items())
        for name in ("rabbitmqctl", "rabbitmq-diagnostics"):
            command = commands / name
            command.write_text(f'#!/bin/sh\n{exports}exec {shlex.quote(str(programs / name))} "$@"\n')
            command.chmod(0o755)
        evaluate = commands / "evaluate"
        evaluate.write_text(f"#!/bin/sh\n{exports}{EVALUATE}")
        evaluate.chmod(0o755)
        epmd = self.run_beside([self.root / "usr/lib/erlang/bin/epmd"])
        # It answers a request for the names that it knows with its own port.
        self.wait_for(epmd, lambda: exchange(names, b"\x00\x01n", 4) == names.to_bytes(4, "big"))

    def command(self) -> list[Path | str]:
        """Return the script that starts the node."""
        return [self.root / "usr/lib/rabbitmq/bin/rabbitmq-server"]

    def answers(self) -> bool:
        """Ask as AMQP 0-9-1 does: the answer is a method frame on channel 0, which holds Connection.Start."""
        answer = exchange(self.ports[0], b"AMQP\x00\x00\x09\x01", 11)
        return answer[:3] == b"\x01\x00\x00" and answer[7:] == b"\x00\x0a\x00\x0a"

    def kill(self) -> None:
        """End it by SIGKILL, when it has written which queues there are.

        It confirms messages when they are on the disk, but a queue before that: one that was declared in the last
        second could be gone after a kill, or, if it is a quorum queue, not be usable any more.
        """
        if not self.paused:
            write = "ok = mnesia:sync_log(), [dets:sync(T) || T <- dets:all()]"
            self.run_first([self.folder / "commands/evaluate", write])
        self.kill_now()
