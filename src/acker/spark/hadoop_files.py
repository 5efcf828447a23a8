"""Filesystems of Hadoop for pyarrow, through a JVM: HDFS, and what else Spark has a connector for.

On the driver the JVM is that of the session. A worker starts one from Spark's jars when it first needs a file; it ends
with the worker.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyarrow import fs
from pyspark.errors import PySparkException

from acker.errors import ArgumentValueError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

TYPE: Final = "hadoop"
# More bytes than this go through a file: as a part of a message to Java or from there they are text.
_MESSAGE_BYTES: Final = 1 << 15
_CHUNK_BYTES: Final = 1 << 25
# A worker's JVM only moves bytes, and many workers may share a machine.
_JVM_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class HadoopSetup(NamedTuple):
    """What workers need to know to reach a filesystem as the driver does.

    Attributes
    ----------
    conf : bytes
        Hadoop's configuration, packed; empty: what Hadoop finds on the machine.
    user : str
        The driver's, for clusters that believe what they are told.
    classpath : str
        Of connectors that are not among Spark's jars.
    """

    conf: bytes = b""
    user: str = ""
    classpath: str = ""


def setup_of(spark: SparkSession) -> HadoopSetup:
    """Return the setup of a session with a JVM of its own."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    java = gateway.jvm
    buffer = java.java.io.ByteArrayOutputStream()
    spark._jsparkSession.sessionState().newHadoopConf().write(java.java.io.DataOutputStream(buffer))
    user = java.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName()
    classpath = spark.sparkContext.getConf().get("spark.executor.extraClassPath", "")
    return HadoopSetup(zlib.compress(buffer.toByteArray()), user, str(classpath))


def open_hadoop(uri: str, setup: HadoopSetup) -> fs.FileSystem:
    """Return the filesystem of a URI.

    Raises
    ------
    ArgumentValueError
        Hadoop has no filesystem for it.
    """
    parts = urlsplit(uri)
    files = HadoopFiles(parts.scheme, setup)
    try:
        files.check(f"{parts.netloc}/")
    except OSError as error:
        raise ArgumentValueError(
            f"{parts.scheme}://{parts.netloc}: Hadoop opens no filesystem for this URI: {error.strerror}"
        ) from error
    return fs.PyFileSystem(files)


class HadoopFiles(fs.FileSystemHandler):
    """The filesystems of one scheme; as in object stores a file appears whole, when it is closed.

    A path begins with the authority of its URI.

    Parameters
    ----------
    scheme : str
    setup : HadoopSetup
    """

    def __init__(self, scheme: str, setup: HadoopSetup) -> None:
        self._scheme, self._setup = scheme, setup

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the JVM behind."""
        return HadoopFiles, (self._scheme, self._setup)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HadoopFiles):
            return NotImplemented
        return (self._scheme, self._setup) == (other._scheme, other._setup)

    def __ne__(self, other: object) -> bool:  # pyarrow wants one
        return not self == other

    def __hash__(self) -> int:
        return hash((self._scheme, self._setup))

    def check(self, path: str) -> None:
        """Raise an OSError if Hadoop has no filesystem for a path."""
        self._located(path)

    @functools.cached_property
    def _java(self) -> _Java:
        return _Java(self._setup)

    def _located(self, path: str) -> _Located:
        with _os_errors(path):
            return self._java.located(self._scheme, path)

    # ---- what is there -----------------------------------------------------------------------------------------------

    def get_type_name(self) -> str:
        """Return the name of the kind of filesystem."""
        return TYPE

    def normalize_path(self, path: str) -> str:
        """Return the path as it is."""
        return path

    def get_file_info(self, paths: Iterable[str]) -> list[fs.FileInfo]:
        """Return whether paths are there, and what they are."""
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        there = self._located(path)
        try:
            with _os_errors(path):
                return _info(path, there.files.getFileStatus(there.path))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Return what is in a directory, or below it."""
        base = selector.base_dir.rstrip("/")
        found: list[fs.FileInfo] = []
        todo = [base]
        while todo:
            directory = todo.pop()
            try:
                entries = self._entries(directory)
            except FileNotFoundError:
                if directory == base and not selector.allow_not_found:
                    raise
                continue  # one below the base was removed meanwhile
            found += entries
            if selector.recursive:
                todo += [each.path for each in entries if each.type == fs.FileType.Directory]
        return found

    def _entries(self, directory: str) -> list[fs.FileInfo]:
        there = self._located(directory)
        authority = directory.partition("/")[0]
        with _os_errors(directory):
            listed = [(each.getPath().toUri().getPath(), each) for each in there.files.listStatus(there.path)]
            # Of a file Hadoop lists the file itself.
            return [_info(path, each) for name, each in listed if (path := f"{authority}{name}") != directory]

    # ---- changes -----------------------------------------------------------------------------------------------------

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: ARG002 - pyarrow's signature
        """Make a directory, and those above it."""
        there = self._located(path)
        with _os_errors(path):
            there.files.mkdirs(there.path)

    def delete_dir(self, path: str) -> None:
        """Remove a directory with all that is in it."""
        self._delete(path, whole=True)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Remove what is in a directory."""
        for each in self.get_file_info_selector(fs.FileSelector(path, allow_not_found=missing_dir_ok)):
            self._delete(each.path, whole=True)

    def delete_root_dir_contents(self) -> None:
        """Refuse."""
        raise NotImplementedError("the root of a filesystem of Hadoop is not emptied")

    def delete_file(self, path: str) -> None:
        """Remove a file."""
        self._delete(path, whole=False)

    def _delete(self, path: str, *, whole: bool) -> None:
        there = self._located(path)
        with _os_errors(path):
            is_gone = there.files.delete(there.path, whole)
        if not is_gone:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def move(self, src: str, dest: str) -> None:
        """Give a file another name; a file of that name is replaced in the same step."""
        before, after = self._located(src), self._located(dest)
        with _os_errors(src):
            self._java.rename(before, after)

    def copy_file(self, src: str, dest: str) -> None:
        """Copy a file."""
        with self.open_input_stream(src) as source, self.open_output_stream(dest, None) as target:
            while chunk := source.read(_CHUNK_BYTES):
                target.write(chunk)

    # ---- contents ----------------------------------------------------------------------------------------------------

    def open_input_stream(self, path: str) -> pa.PythonFile:
        """Open a file for reading."""
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.PythonFile:
        """Open a file for reading, at any place."""
        there = self._located(path)
        with _os_errors(path):
            size = there.files.getFileStatus(there.path).getLen()
            return pa.PythonFile(_Input(self._java, there.files.open(there.path), size, path), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.PythonFile:  # noqa: ARG002
        """Open a file that appears, or replaces the one of its name, when it is closed."""
        folder, _, name = path.rpartition("/")
        # Spark ignores names that begin with a dot.
        hidden = self._located(f"{folder}/.{name}-{uuid.uuid4().hex[:8]}.tmp")
        with _os_errors(path):
            stream = hidden.files.create(hidden.path, True)
        return pa.PythonFile(_Output(self._java, stream, hidden, self._located(path)), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        """Refuse: files are whole."""
        raise NotImplementedError("files are written whole")


def _info(path: str, status: Any) -> fs.FileInfo:
    if status.isDirectory():
        return fs.FileInfo(path, fs.FileType.Directory, mtime=status.getModificationTime() / 1000)
    size, mtime = status.getLen(), status.getModificationTime() / 1000
    return fs.FileInfo(path, fs.FileType.File, size=size, mtime=mtime)


class _Input(io.RawIOBase):
    """A file of Hadoop's that is read."""

    def __init__(self, java: _Java, stream: Any, size: int, path: str) -> None:
        self._java, self._stream, self._size, self._path = java, stream, size, path
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        end = self._at + (left if size is None or size < 0 else min(size, left))
        chunks = []
        with _os_errors(self._path):
            while self._at < end:
                chunk = self._java.read(self._stream, self._at, min(_CHUNK_BYTES, end - self._at))
                if not chunk:
                    raise OSError(errno.EIO, "the file has become shorter", self._path)
                chunks.append(chunk)
                self._at += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _os_errors(self._path):
                self._stream.close()


class _Output(io.RawIOBase):
    """A file of Hadoop's that is written below a hidden name, until it is closed."""

    def __init__(self, java: _Java, stream: Any, hidden: _Located, path: _Located) -> None:
        self._java, self._stream, self._hidden, self._path = java, stream, hidden, path
        self._at, self._failed = 0, False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        view = memoryview(data)
        try:
            with _os_errors(self._path.text):
                for begin in range(0, view.nbytes, _CHUNK_BYTES):
                    self._java.write(self._stream, view[begin : begin + _CHUNK_BYTES])
        except BaseException:
            self._failed = True
            raise
        self._at += view.nbytes
        return view.nbytes

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        with _os_errors(self._path.text):
            if self._failed:
                self._hidden.files.delete(self._hidden.path, False)
                return
            self._stream.close()
            self._java.rename(self._hidden, self._path)


# ---- Java -----------------------------------------------------------------------------------------------------------


class _Located(NamedTuple):
    """A path as Java has it, and its filesystem."""

    text: str
    path: Any
    files: Any


class _Java:
    """The classes of Hadoop in this process's JVM. A name of a package is a message to Java, so they are kept."""

    def __init__(self, setup: HadoopSetup) -> None:
        gateway = _gateway(setup)
        java = gateway.jvm
        self._sink, self._source = java.java.io.FileOutputStream, java.java.io.FileInputStream
        hadoop = java.org.apache.hadoop
        self._conf = hadoop.conf.Configuration(not setup.conf)
        if setup.conf:
            content = java.java.io.ByteArrayInputStream(zlib.decompress(setup.conf))
            self._conf.readFields(java.java.io.DataInputStream(content))
        self._path, self._context_of = hadoop.fs.Path, hadoop.fs.FileContext.getFileContext
        self._copy = java.org.apache.commons.io.IOUtils.copyLarge
        rename = hadoop.fs.Options.Rename
        self._options = gateway.new_array(rename, 1)
        self._options[0] = rename.OVERWRITE
        # By authority.
        self._filesystems: dict[str, Any] = {}
        self._contexts: dict[str, Any] = {}

    def located(self, scheme: str, text: str) -> _Located:
        """Return a path in which nothing is escaped, and which begins with an authority."""
        authority, _, rest = text.partition("/")
        path = self._path(f"{scheme}://{authority}/{rest}")
        if authority not in self._filesystems:
            self._filesystems[authority] = path.getFileSystem(self._conf)
        return _Located(text, path, self._filesystems[authority])

    def rename(self, before: _Located, after: _Located) -> None:
        """Give a file another name; a file of that name is replaced in the same step."""
        authority = after.text.partition("/")[0]
        if authority not in self._contexts:
            self._contexts[authority] = self._context_of(after.files.getUri(), self._conf)
        self._contexts[authority].rename(before.path, after.path, self._options)

    def read(self, stream: Any, begin: int, size: int) -> bytes:
        """Read from a stream of Hadoop's at a place."""
        stream.seek(begin)
        if size <= _MESSAGE_BYTES:
            return bytes(stream.readNBytes(size))
        with _scratch() as file:
            sink = self._sink(file.name)
            self._copy(stream, sink, 0, size)
            sink.close()
            return bytes(file.read())

    def write(self, stream: Any, data: memoryview) -> None:
        """Write to a stream of Hadoop's."""
        if data.nbytes <= _MESSAGE_BYTES:
            stream.write(bytes(data))
            return
        with _scratch() as file:
            file.write(data)
            file.flush()
            source = self._source(file.name)
            self._copy(source, stream, 0, data.nbytes)
            source.close()


def _scratch() -> Any:
    # Spark removes what is in its own folders, also of workers that are killed.
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    return tempfile.NamedTemporaryFile(prefix="acker-hadoop-", dir=folder)


def _gateway(setup: HadoopSetup) -> JavaGateway:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    return gateway if gateway is not None else _own_gateway(setup.user, setup.classpath)


@functools.cache
def _own_gateway(user: str, classpath: str) -> JavaGateway:
    """Start a JVM with Spark's jars and those that were sent to executors; it ends when this process does."""
    import pyspark
    from pyspark import SparkFiles, TaskContext

    homes = [os.environ.get("SPARK_HOME"), Path(pyspark.__file__).parent]
    # The last one is where YARN puts them.
    folders = [*(Path(home, "jars") for home in homes if home), Path("__spark_libs__").absolute()]
    py4j = next((jar for folder in folders for jar in folder.glob("py4j-*.jar")), None)
    if py4j is None:
        raise OSError(errno.ENOENT, f"no jars of Spark in {', '.join(map(str, folders))}: set SPARK_HOME here")
    found = [f"{py4j.parent}/*", classpath, os.environ.get("CLASSPATH", "")]
    if TaskContext.get() is not None:
        found.append(f"{SparkFiles.getRootDirectory()}/*")
    try:
        port, token = launch_gateway(
            jarpath=str(py4j),
            classpath=os.pathsep.join(filter(None, found)),
            javaopts=[*_JVM_OPTIONS, f"-DHADOOP_USER_NAME={user}"],
            die_on_exit=True,
            java_path=None,
            enable_auth=True,
        )
    except (OSError, ValueError) as error:
        raise OSError(errno.ENOENT, f"Hadoop's files need Java here: set JAVA_HOME: {error}") from error
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Raise Java's exceptions as those of files."""
    try:
        yield
    except Py4JJavaError as error:
        java = error.java_exception
        name, message = java.getClass().getSimpleName(), (java.getMessage() or "").partition("\n")[0]
        if name == "FileNotFoundException":
            raise FileNotFoundError(errno.ENOENT, message or os.strerror(errno.ENOENT), path) from error
        raise OSError(errno.EIO, f"{name}: {message}", path) from error
    except PySparkException as error:  # on the driver PySpark has classes of its own for some of Java's
        raise OSError(errno.EIO, str(error).partition("\n")[0], path) from error
    except Py4JError as error:  # the JVM has ended
        raise OSError(errno.EPIPE, f"the JVM that has Hadoop does not answer: {error}", path) from error
