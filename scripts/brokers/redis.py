"""Redis, with a log of what it was told."""

from pathlib import Path

from brokers.packages import Packages, library_path
from brokers.server import Server, exchange


class Redis(Server):
    """Redis; all that it has confirmed outlives its process."""

    origin = Packages("redis", "redis-server", ("redis-",), "usr/bin/redis-server")

    @property
    def url(self) -> str:
        """Of database 0."""
        return f"redis://127.0.0.1:{self.ports[0]}/0"

    def prepare(self) -> None:
        """Let it find its libraries."""
        self.environ |= library_path(self.root)

    def command(self) -> list[Path | str]:
        """Return the program with its settings."""
        # Each command is in the log before its answer. That the log reaches the disk matters to machines that fail.
        settings = {"appendonly": "yes", "appendfsync": "no", "save": "", "bind": "127.0.0.1", "port": self.ports[0]}
        options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return [self.root / "usr/bin/redis-server", *options, "--dir", self.folder]

    def answers(self) -> bool:
        """Ask for a PONG; while it loads its log it answers otherwise."""
        return exchange(self.ports[0], b"PING\r\n", 5) == b"+PONG"
