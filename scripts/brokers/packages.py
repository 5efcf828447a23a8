"""Servers from Debian packages: those of the system, or unpacked below build/brokers without root."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from brokers.errors import NotBroughtError, UnavailableError

BROKERS = Path(__file__).resolve().parents[2] / "build/brokers"
PROGRAMS = ("apt-get", "apt-cache", "dpkg-deb", "dpkg-query")
# Libraries that no server here needs: those of PostgreSQL's compiler, of Perl, of installers, of other kinds of init.
UNNEEDED = re.compile(r"lib(llvm|z3-|perl|elogind|debian-installer|newt|slang|textwrap).*|.*-perl")


def forbidden(environ: Mapping[str, str]) -> bool:
    """Return whether nothing may be downloaded."""
    return environ.get("ACKER_INSTALL_BROKERS", "1") in {"0", "no"}


class Packages(NamedTuple):
    """A server that Debian and its relatives have."""

    name: str  # of the server
    package: str
    parts: tuple[str, ...]  # the beginnings of the names of the packages that are unpacked
    program: str  # below the root; may be a pattern

    def find_or_bring(self, environ: Mapping[str, str], root: Path | None = None) -> Path:
        """Return the root folder below which the server's files lie: that of the system, or one for it alone."""
        roots = [root] if root is not None else [Path("/"), BROKERS / self.package]
        for each in roots:
            if self.programs(each):
                return each
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if missing:
            raise UnavailableError(
                f"{self.name} is not here, and there is no {missing[0]} to download it with: install it"
            )
        if forbidden(environ):
            raise NotBroughtError(f"{self.name} is not here, and ACKER_INSTALL_BROKERS=0 forbids to download it")
        self._unpack(roots[-1])
        return roots[-1]

    def programs(self, root: Path) -> list[Path]:
        """Return the server's program below a root, the newest release last; empty if it is not there."""
        return sorted(root.glob(self.program), key=lambda path: [int(each) for each in re.findall(r"\d+", str(path))])

    def _unpack(self, root: Path) -> None:
        """Download the packages with lists of their own, which are fresh whatever the system's are."""
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{self.package}-", dir=root.parent) as scratch:
            folder = Path(scratch)
            for each in ("lists/partial", "cache/archives/partial", "packages", "root"):
                (folder / each).mkdir(parents=True)
            settings = {
                "Dir::State::lists": folder / "lists",
                "Dir::Cache": folder / "cache",
                "APT::Sandbox::User": "root",  # the user that it would change to cannot read this folder
                "Acquire::Retries": 3,
                "Acquire::http::Timeout": 20,
            }
            options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
            _run(["apt-get", *options, "update"], folder)
            depends = ["apt-cache", *options, "depends", "--recurse", "--no-recommends", "--no-suggests"]
            try:
                listed = _run([*depends, "--no-conflicts", "--no-breaks", "--no-replaces", self.package], folder)
            except NotBroughtError as why:  # an update without a network only warns
                raise NotBroughtError(
                    f"apt-get update found no package {self.package}: without a network, or without lists of packages "
                    f"that hold it ({why})"
                ) from why
            names = self._needed(listed.splitlines(), folder)
            if not names:
                raise UnavailableError(f"apt-cache knows no package {self.package}")
            _run(["apt-get", *options, "download", *names], folder / "packages")
            for package in sorted((folder / "packages").glob("*.deb")):
                _run(["dpkg-deb", "-x", str(package), str(folder / "root")], folder)
            _relocate(folder / "root", root)
            with contextlib.suppress(OSError):  # another process may have been quicker
                (folder / "root").rename(root)
        if not self.programs(root):
            raise NotBroughtError(f"the packages {', '.join(names)} hold no {self.program}")

    def _needed(self, listed: list[str], folder: Path) -> list[str]:
        """Choose among a package and its dependencies: its parts, and the libraries of theirs that the system lacks."""
        installed = set(_run(["dpkg-query", "-W", "-f", "${Package}\n"], folder).splitlines())
        dependencies = _dependencies(listed)
        own: set[str] = set()
        libraries: set[str] = set()
        found = [self.package]
        while found:
            name = found.pop()
            # What is neither is not unpacked, so nothing needs its libraries.
            chosen = own if name.startswith(self.parts) else libraries
            if name in chosen or not (chosen is own or name.startswith("lib")):
                continue
            chosen.add(name)
            found += dependencies.get(name, ())
        missing = {name for name in libraries - installed if not UNNEEDED.fullmatch(name)}
        return sorted((own | missing) & dependencies.keys())


def _dependencies(listed: list[str]) -> dict[str, list[str]]:
    """Return the packages in what `apt-cache depends` printed, with those that each depends on."""
    found: dict[str, list[str]] = {}
    behind: list[str] = []
    for line in listed:
        if line.startswith((" ", "|")):
            behind.append(line.strip(" |").rpartition(": ")[2])
        else:
            behind = []
            if not line.startswith("<"):  # a name that other packages provide
                found[line] = behind
    return found


def library_path(root: Path) -> dict[str, str]:
    """Return the variable that lets unpacked programs find the libraries that were unpacked with them.

    A library of one package alone lies a folder deeper, which the others name by where it would be installed.
    """
    if root == Path("/"):
        return {}
    libraries = [path for lib in ("usr/lib", "lib") for path in root.glob(f"{lib}/*-linux-gnu*/**/lib*.so*")]
    folders = sorted({path.parent for path in libraries}, key=lambda folder: (len(folder.parts), folder))
    return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))} if folders else {}


def _run(command: list[str], folder: Path) -> str:
    if command[0] == "apt-get":  # the others take no time
        words = [word for word in command if "::" not in word and word != "-o"]
        print(f"==> {' '.join(words)}", file=sys.stderr, flush=True)
    environ = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, capture_output=True, check=False, cwd=folder, env=environ, stdin=subprocess.DEVNULL, text=True
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise NotBroughtError(f"{command[0]} failed: {said}")
    return done.stdout


def _relocate(unpacked: Path, root: Path) -> None:
    """Let Erlang's scripts find their files below another root than that of the system."""
    for script in (*unpacked.glob("usr/lib/erlang/bin/*"), *unpacked.glob("usr/lib/erlang/erts-*/bin/*")):
        with contextlib.suppress(UnicodeDecodeError):  # a program
            text = script.read_text(encoding="utf-8")
            home = shlex.quote(f"{root}/usr/lib/erlang")
            script.write_text(re.sub(r"\bROOTDIR=/usr/lib/erlang\b", f"ROOTDIR={home}", text), encoding="utf-8")
