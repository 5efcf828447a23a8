"""`acker run --on spark`: the session, the runtime, and the modules that travel to the workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from acker.cli.environment import announce, require, spark_session
from acker.cli.load import UsageError, blame_state

if TYPE_CHECKING:
    from types import ModuleType

    from acker.spark.topologies.spark_runtime import SparkRuntime
    from acker.topology import Graph, Topology
    from acker.ui import LivePage

# If one of these is set, Spark may find a master in its own settings.
_SPARK_VARIABLES: Final = ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")


class OnSpark(NamedTuple):
    """The options of a run on Spark.

    Attributes
    ----------
    master : str or None
        None: that of Spark's own settings.
    checkpoint, trigger : str or None
        As for `acker.spark.run`.
    """

    master: str | None
    checkpoint: str | None
    trigger: str | None

    def refuse(self) -> None:
        """Refuse these options for a run in this process."""
        for name, value in self._asdict().items():
            if value is not None:
                raise UsageError(f"--{name} {value}: this is for a run on Spark; add --on spark, or leave it out")

    def refuse_local_options(self, options: Mapping[str, object]) -> None:
        """Refuse options that only a run in one process has, and a trigger without a stream."""
        for name, value in options.items():
            if value is not None:
                raise UsageError(f"{name}: this is for a run in this process; leave it out with --on spark")
        if self.trigger is not None and self.checkpoint is None:
            raise UsageError(f"--trigger {self.trigger}: this is for a stream; give its --checkpoint DIR, too")

    @contextmanager
    def runtime(
        self,
        topology: type[Topology] | Graph,
        conf: Mapping[str, Any],
        environment: str | None,
        state: Path | None = None,
        ui: LivePage | None = None,
    ) -> Iterator[SparkRuntime]:
        """Start Spark; give a runtime for the topology, which was not started."""
        require("pyspark", "pyarrow", "pandas", extra="spark")
        from acker.spark.topologies.run import check_session
        from acker.spark.topologies.spark_runtime import SparkRuntime
        from acker.topology.graph import graph_of

        graph = graph_of(topology, environment)  # What is wrong with it is said before Spark starts.
        of_spark = {name: _text_of(value) for name, value in conf.items() if name.startswith("spark.")}
        options = {name: value for name, value in conf.items() if name not in of_spark}
        master = self.master or (None if any(map(os.environ.get, _SPARK_VARIABLES)) else "local[*]")
        with ExitStack() as stack:
            announce("starting Spark")
            spark = stack.enter_context(
                spark_session(f"acker {graph.name}", master, driver_memory=None, start_conf=of_spark)
            )
            check_session(spark)
            stack.enter_context(pickled_by_value(Path.cwd()))
            with blame_state():
                runtime = SparkRuntime(graph, options, spark, checkpoint=self.checkpoint, state=state, ui=ui)
            stack.callback(runtime.release)
            yield runtime

    def run_until(self, runtime: Any) -> Callable[[str], None]:
        """Return the function that starts a runtime and waits until a condition holds."""
        from acker.spark.topologies.run import run_until

        return lambda until: run_until(runtime, until, self.checkpoint, self.trigger)


@contextmanager
def pickled_by_value(folder: Path) -> Iterator[None]:
    """Send the modules below a folder to the workers whole, since theirs may be another folder, or another machine.

    Not those of packages that are installed: workers have them too.
    """
    from pyspark import cloudpickle

    modules = [module for module in list(sys.modules.values()) if _is_below(module, folder)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _is_below(module: ModuleType, folder: Path) -> bool:
    """Return whether a module is a file of the user's below a folder."""
    name = getattr(module, "__name__", None)
    file = getattr(module, "__file__", None)
    # The file of acker itself is below the folder where it is developed.
    if not isinstance(file, str) or name in (None, "__main__") or str(name).partition(".")[0] == "acker":
        return False
    path = Path(file).resolve()
    return path.is_relative_to(folder.resolve()) and not path.is_relative_to(Path(sys.prefix).resolve())


def _text_of(value: Any) -> str:
    """Return an option as Spark writes it: the command line has read it as JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)
