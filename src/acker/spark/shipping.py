"""Shipping of the installed acker to the executors of a running session, as an archive.

Spark unpacks an archive into the folder of the session's files, under the name after the ``#``, and that folder is on
the path of every Python worker. So an archive of the package's content, unpacked as ``acker``, is the package, with its
compiled modules as files; Python cannot load them from a zip.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import acker
from acker.errors import ArgumentTypeError, ArgumentValueError, SessionError
from acker.spark.session_checks import is_classic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# Folders of a wheel that workers import; the second one has shared libraries that were put into the wheel.
_FOLDERS: Final = ("acker", "acker.libs")
# Makes archives of the same content the same bytes: Spark refuses another file of the same name.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession, *, wheel: str | os.PathLike[str] | None = None) -> None:
    """Send acker to the executors of a session, including later ones, if they do not have it.

    Call it before the first job that needs acker there. Another call has no effect. numpy, pyarrow and, for streams,
    pandas and protobuf must be on the executors, as PySpark itself needs them there.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect. With Connect the server must have acker itself for a streaming acker, since Spark starts the
        first Python of one beside the server, without the session's files.
    wheel : path, optional
        A wheel of this release for the executors' platform. By default the acker that is installed here is sent, which
        fits executors with the same Python on the same operating system and processor family.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        `wheel` is no path, no wheel of acker, or one of another release.
    SessionError
        acker was imported from a zip, so no installed package can be sent.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> aspark.ship(spark)                                                                              # doctest: +SKIP
    >>> aspark.completions_from_files(spark, "messages").count()                                        # doctest: +SKIP
    """
    for archive in archives(wheel):
        spark.addArtifacts(archive, archive=True)
    if is_classic(spark):
        # For the worker of a streaming acker that Spark starts beside the driver, without the paths of archives, though
        # they are unpacked there too.
        from pyspark.core.files import SparkFiles

        environment, root = spark.sparkContext.environment, SparkFiles.getRootDirectory()
        paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != root]
        environment["PYTHONPATH"] = os.pathsep.join([*paths, root])


def archives(wheel: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the archives that `ship` adds: their paths, each with the name under which Spark unpacks it.

    Parameters
    ----------
    wheel : path, optional
        See `ship`.
    """
    if wheel is None:
        return _archives(None)
    if not isinstance(wheel, (str, os.PathLike)):
        raise ArgumentTypeError(f"wheel: expected a path, got {type(wheel).__name__}")
    return _archives(Path(wheel).absolute())


@functools.cache
def _archives(wheel: Path | None) -> list[str]:
    contents = dict(_installed_files() if wheel is None else _wheel_files(wheel))
    # Executors fetch the files from here for as long as the session lives.
    folder = Path(tempfile.mkdtemp(prefix="acker-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = []
    for name in _FOLDERS:
        files = {path.partition("/")[2]: data for path, data in contents.items() if path.startswith(f"{name}/")}
        if not files:
            continue
        digest = hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=6).hexdigest()
        archive = folder / f"{name}-{acker.__version__}-{digest}.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
            for path, data in sorted(files.items()):
                entry = zipfile.ZipInfo(path, _EPOCH)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                target.writestr(entry, data)
        made.append(f"{archive}#{name}")
    return made


def _installed_files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the imported package, and of the libraries that a wheel put beside it."""
    package = Path(acker.__file__).parent
    if not package.is_dir():
        raise SessionError(
            f"acker was imported from {package.parent}, which is no folder, so no installed package can be sent; name"
            " a wheel for the executors, ship(spark, wheel=...)"
        )
    for name in _FOLDERS:
        for path in (package.parent / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(package.parent).as_posix(), path.read_bytes()


def _wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a wheel, which must be of this release."""
    expected = f"wheel: expected a wheel of acker {acker.__version__}"
    name, version, *_ = [*wheel.name.split("-"), ""]
    if (name, version) != ("acker", acker.__version__) or wheel.suffix != ".whl":
        raise ArgumentValueError(f"{expected}, got {wheel.name}")
    try:
        with zipfile.ZipFile(wheel) as source:
            for entry in source.infolist():
                if not entry.is_dir():
                    yield entry.filename, source.read(entry)
    except (OSError, zipfile.BadZipFile) as error:
        raise ArgumentValueError(f"{expected}, and {wheel} cannot be read: {error}") from error
