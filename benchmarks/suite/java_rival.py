"""A rival that is written in Java: its source compiled, and made known to the JVM of a session of Spark."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT: Final = Path(__file__).resolve().parents[2]
_SOURCES: Final = _ROOT / "benchmarks/rivals"
# Executors fetch the jar from there as long as the session lives.
_BUILT: Final = _ROOT / "build/rivals"


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of benchmarks/rivals, as py4j has it.

    Raises
    ------
    RuntimeError
        There is no compiler, since the Java that Spark runs on is of a JRE and of no JDK; or the source has errors,
        which the text names.
    """
    jvm: Any = spark.sparkContext._jvm
    source = _SOURCES / f"{name}.java"
    fingerprint = hashlib.sha256(spark.version.encode() + source.read_bytes()).hexdigest()[:8]
    jar = _BUILT / f"{name}-{fingerprint}.jar"
    if not jar.exists():
        _BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_BUILT) as folder:
            _compile(jvm, source, Path(folder)).rename(jar)
    spark.sql(f"ADD JAR '{jar}'").collect()
    return getattr(jvm, name)


def _compile(jvm: Any, source: Path, folder: Path) -> Path:
    """Return a jar with the classes of a source, of the compiler beside the Java that runs."""
    property_of = jvm.java.lang.System.getProperty
    javac = Path(property_of("java.home"), "bin", "javac")
    if not javac.exists():
        raise RuntimeError(f"{source.name}: the Java that Spark runs on has no compiler {javac}; it takes a JDK")
    classes, jar = folder / "classes", folder / "made.jar"
    command = [javac, "-cp", property_of("java.class.path"), "-d", classes, source]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        raise RuntimeError(f"{source.name}: {done.stderr}")
    with zipfile.ZipFile(jar, "w") as archive:
        for each in sorted(classes.rglob("*.class")):
            archive.write(each, each.relative_to(classes))
    return jar
