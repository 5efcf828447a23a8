"""A home for Spark that tests can write to, and whose Python workers start sooner."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# The tests start some forty JVMs, each for a minute or less. Such a JVM never earns back what its second compiler and
# a parallel garbage collector cost: with these options a start of Spark takes half the processor time.
JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def make_spark_home(home: Path) -> Path:
    """Make a folder that serves as SPARK_HOME, with links to the Spark that is installed; return it.

    Executors of a local cluster are started in their SPARK_HOME, and leave their logs there. This one has no copy of
    PySpark in a zip: a worker that imports the installed package, which is compiled, takes 2 s less of processor time.
    """
    import pyspark

    (home / "python").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        link = home / name
        if not link.exists():
            link.symlink_to(Path(pyspark.__file__).parent / name)
    return home
