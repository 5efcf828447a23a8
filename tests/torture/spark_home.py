"""A home for Spark that tests can write to, and whose Python workers start sooner."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# Made by the set-up: see scripts/spark_archive.py.
ARCHIVE: Final = Path(__file__).resolve().parents[2] / ".venv/acker/spark.jsa"


def jvm_options(archive: Path) -> str:
    """Return options for JVMs that run Spark for a minute or less, as the tests start some forty of them.

    Such a JVM never earns back what its second compiler and a parallel garbage collector cost: without them a start of
    Spark takes half the processor time, and with an archive of its classes half of that. A JVM for which the archive
    does not fit would say so among the output of its program.
    """
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    if not archive.is_file() or " " in str(archive):
        return options
    return f"{options} -XX:SharedArchiveFile={archive} -Xlog:disable -Xlog:all=error:stderr"


JVM_OPTIONS: Final = jvm_options(ARCHIVE)
# Forks Spark's Python workers, which takes a sixth of the processor time from many small jobs.
WARM_DAEMON: Final = "tests.torture.warm_daemon"


def make_spark_home(home: Path, *, is_zipped: bool = False) -> Path:
    """Make a folder that serves as SPARK_HOME, with links to the Spark that is installed; return it.

    Executors of a local cluster are started in their SPARK_HOME, and leave their logs there. This one has no copy of
    PySpark in a zip: a worker that imports the installed package, which is compiled, takes 2 s less of processor time.
    With `is_zipped` it has one, as clusters do, for a Python that lacks PySpark.
    """
    import pyspark

    (home / "python").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", *(["python/lib"] if is_zipped else [])):
        link = home / name
        if not link.exists():
            link.symlink_to(Path(pyspark.__file__).parent / name)
    return home
