"""Functions in forked processes, by a parent that never runs Arrow: it has threads, and some forks of those abort."""

import json
import os
import traceback
import warnings


def run_forked(function):
    """Run a function in a process of its own; return how that ended, as `os.waitpid` does: 0, or a signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # Python's own, of a process with threads
        child = os.fork()
    if not child:
        try:
            function()
        except BaseException:  # noqa: BLE001 - its status tells
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def ask_forked(function):
    """Return what a function returns in a process of its own, by way of JSON."""
    reader, writer = os.pipe()

    def answer():
        with os.fdopen(writer, "w") as file:
            json.dump(function(), file)

    with os.fdopen(reader) as file:
        status = run_forked(answer)  # an answer is shorter than a pipe holds
        os.close(writer)
        assert status == 0, status
        return json.load(file)
