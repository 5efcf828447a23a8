"""Logs of file sinks of Structured Streaming, as Spark writes them."""

import json


def entry(uri, action="add", **more):
    fields = {"path": uri, "size": 1, "isDir": False, "modificationTime": 1, "blockReplication": 1, "blockSize": 1}
    return json.dumps(fields | {"action": action} | more)


def commit(directory, number, names, *, compact=False):
    """Write down that a micro-batch committed files of a directory."""
    log = directory / "_spark_metadata"
    log.mkdir(exist_ok=True)
    lines = ["v1", *(entry((directory / name).as_uri()) for name in names)]
    (log / f"{number}{'.compact' * compact}").write_text("\n".join(lines))
