"""SQS, as moto answers in its place."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from brokers.errors import UnavailableError
from brokers.server import Server, exchange


class Module(NamedTuple):
    """A server that pip has installed for the Python that runs this."""

    name: str
    module: str

    def find_or_bring(self, environ: Mapping[str, str], root: Path | None = None) -> Path:  # noqa: ARG002
        """Return the folder of Python's packages."""
        if importlib.util.find_spec(self.module) is None:
            raise UnavailableError(f"{self.name} needs the package {self.module}[server]: pip install it")
        return Path(sys.prefix)


class SQS(Server):
    """A server that answers as SQS; it keeps all in memory, so nothing outlives its process."""

    origin = Module("sqs", "moto")

    @property
    def url(self) -> str:
        """As endpoint_url; any credentials and any region will do."""
        return f"http://127.0.0.1:{self.ports[0]}"

    def command(self) -> list[Path | str]:
        """Return the command of the server."""
        return [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self.ports[0])]

    def answers(self) -> bool:
        """Ask for a page of moto's own."""
        request = b"GET /moto-api/data.json HTTP/1.0\r\n\r\n"
        return exchange(self.ports[0], request, 12)[9:] == b"200"
