"""The process of the streaming word count that gets killed and restarted: Spark and its query.

    python -m examples.wordcount.stream_main FOLDER MASTER DRIVER_MEMORY

It ends with its standard input, so that it does not outlive the command, and writes its errors to the folder.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from acker.cli.environment import SetupError, last_line, spark_session
from examples.wordcount.stream_files import Folder

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def main(root: Path, master: str, driver_memory: str) -> int:
    """Run the stream, and return the exit code."""
    folder = Folder(root)
    try:
        from examples.wordcount.stream import session_conf, start

        conf = session_conf(folder.settings().partitions)
        with spark_session("acker stream-wordcount", master, driver_memory=driver_memory, conf=conf) as spark:
            query = start(spark, root)
            threading.Thread(target=_stop_at_end_of_input, args=(query,), daemon=True).start()
            query.awaitTermination()
    except SetupError as fault:
        return _write_failure(folder, str(fault), 4)
    except ConnectionError:
        return _write_failure(folder, "its JVM is gone", 5)
    except Exception as fault:  # noqa: BLE001  The command that waits says it, whatever it is.
        return _write_failure(folder, last_line(fault), 5)
    return 0


def _stop_at_end_of_input(query: StreamingQuery) -> None:
    sys.stdin.buffer.read()
    query.stop()


def _write_failure(folder: Folder, text: str, code: int) -> int:
    folder.failure.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
