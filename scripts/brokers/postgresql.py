"""PostgreSQL, with one user who has a password."""

import os
import pwd
import shutil
import signal
from pathlib import Path

from brokers.errors import StartError
from brokers.packages import Packages, library_path
from brokers.server import Server, exchange

USER, PASSWORD = "acker", "only-for-tests"


class PostgreSQL(Server):
    """PostgreSQL; what was committed outlives its process."""

    origin = Packages("postgresql", "postgresql", ("postgresql", "libpq5"), "usr/lib/postgresql/*/bin/postgres")
    stop_signal = signal.SIGINT  # on SIGTERM it would wait for its clients to leave

    @property
    def url(self) -> str:
        """Of a database that is empty at first."""
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.ports[0]}/postgres"

    def prepare(self) -> None:
        """Make an empty cluster. Where root asks, another user owns and runs it: PostgreSQL refuses to run as root."""
        self.environ |= {**library_path(self.root), "LC_ALL": "C", "TZ": "UTC"}
        self._programs = self.origin.programs(self.root)[-1].parent
        secret = self.folder / "password"
        secret.write_text(f"{PASSWORD}\n")
        if os.geteuid() == 0:
            self._give_to(pwd.getpwnam("nobody"))
        data = self.folder / "data"
        words = f"--username={USER} --pwfile={secret} --auth=scram-sha-256 --encoding=UTF8 --no-sync"
        self.run_first([self._programs / "initdb", f"--pgdata={data}", *words.split()])
        settings = {
            "listen_addresses": "'127.0.0.1'",
            "port": self.ports[0],
            "unix_socket_directories": "''",
            # That a commit reaches the disk matters to machines that fail.
            "fsync": "off",
            "jit": "off",
            "max_connections": 200,
            "shared_buffers": "32MB",
        }
        with (data / "postgresql.conf").open("a") as stream:
            stream.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def command(self) -> list[Path | str]:
        """Return the program with its data."""
        return [self._programs / "postgres", "-D", self.folder / "data"]

    def answers(self) -> bool:
        """Ask for a session of an unknown user: it asks for a password, unless it is still starting."""
        body = b"\x00\x03\x00\x00user\x00nobody\x00\x00"
        return exchange(self.ports[0], (len(body) + 4).to_bytes(4, "big") + body, 1) == b"R"

    def _give_to(self, user: pwd.struct_passwd) -> None:
        self.user = user.pw_uid
        self.environ["HOME"] = str(self.folder)
        self.log.touch()
        for path in (self.folder, *self.folder.iterdir()):
            os.chown(path, user.pw_uid, user.pw_gid)
        if not all(folder.stat().st_mode & 1 for folder in self.folder.parents):
            raise StartError(f"{self.folder.parent} is closed to the user {user.pw_name}: set TMPDIR to another folder")
        if not all(folder.stat().st_mode & 1 for folder in self._programs.parents):
            # The programs lie where only root may go. They find their other files from where they are.
            copy = self.folder / "programs"
            shutil.copytree(self.root, copy, symlinks=True)
            self._programs = copy / self._programs.relative_to(self.root)
            self.environ |= library_path(copy)
