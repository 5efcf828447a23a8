"""NATS with JetStream."""

from pathlib import Path

from brokers.packages import Packages
from brokers.server import Server, exchange

USER, PASSWORD = "acker", "only-for-tests"


class NATS(Server):
    """NATS with JetStream; streams that are stored in files outlive its process.

    Clients need no credentials, but those that they give have to be right.
    """

    origin = Packages("nats", "nats-server", ("nats-server",), "usr/sbin/nats-server")

    @property
    def url(self) -> str:
        """Of its clients' protocol."""
        return f"nats://127.0.0.1:{self.ports[0]}"

    def facts(self) -> dict[str, object]:
        """Return credentials."""
        return {"user": USER, "password": PASSWORD}

    def prepare(self) -> None:
        """Write its settings."""
        users = ", ".join(f"{{ user: {user}, password: {PASSWORD} }}" for user in (USER, "anyone"))
        settings = {
            # A client on a busy machine may take longer than the usual two seconds to say who it is.
            "authorization": f"{{ timeout: 60, users: [ {users} ] }}",
            "no_auth_user": "anyone",
            "listen": f"127.0.0.1:{self.ports[0]}",
            "jetstream": f'{{ store_dir: "{self.folder / "data"}" }}',
            "max_payload": 64 * 2**20,  # the most that it takes
        }
        written = "".join(f"{name}: {value}\n" for name, value in settings.items())
        (self.folder / "nats.conf").write_text(written)

    def command(self) -> list[Path | str]:
        """Return the program with its settings."""
        return [self.root / "usr/sbin/nats-server", "--config", self.folder / "nats.conf"]

    def answers(self) -> bool:
        """Ask for a PONG; it comes after a line of INFO, which says that JetStream is there."""
        text = exchange(self.ports[0], b'CONNECT {"verbose":true}\r\nPING\r\n', 2**16, until=b"PONG\r\n")
        return b'"jetstream":true' in text and text.endswith(b"PONG\r\n")
