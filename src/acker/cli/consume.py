"""`acker consume`: a consumer and its handler, until a signal."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import thread as pool_threads
from typing import Any, Final, Literal

from acker.cli.load import UsageError, load_consumer
from acker.cli.topology import page_of
from acker.errors import ArgumentTypeError, ArgumentValueError, PageError, RuntimeStateError

logger: Final = logging.getLogger("acker")

# How long threads have, when all is done, to return.
_RETURN_SECS: Final = 2.0


def main(
    name: str,
    *,
    handler: str,
    threads: int | None,
    tasks: int | None,
    until: Literal["stopped", "empty"],
    ui: str | None,
    ui_values: bool,
) -> int:
    """Run a handler, in threads or as coroutines, and return the exit code."""
    from acker.connectors.handlers import is_coroutine_function

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    logger.setLevel(logging.INFO)
    page = page_of(ui, values=ui_values)
    consumer, function = load_consumer(name, handler)
    is_async = is_coroutine_function(function)
    if (tasks if not is_async else threads) is not None:
        fix = "--threads: it is a coroutine function, so use --tasks" if is_async else "--tasks: use --threads"
        raise UsageError(f"{handler} cannot have {fix}")
    options: dict[str, Any] = {"until": until, "ui": page}
    code = 1
    try:
        if is_async:
            asyncio.run(consumer.run_async(function, tasks=tasks or 100, **options))
        else:
            consumer.run(function, threads=threads or 8, **options)
        code = 0
    except (ArgumentTypeError, ArgumentValueError, PageError, RuntimeStateError) as error:
        code = 2
        raise UsageError(str(error)) from error
    except KeyboardInterrupt:
        code = 130
        raise
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except Exception:
        logger.exception("the consumer %s ended", name)
    finally:
        threading.Thread(target=_end_despite_threads, args=(code,), name="acker end", daemon=True).start()
    return code


def _end_despite_threads(code: int) -> None:
    """End the process if threads have not returned, such as those of pools: Python would wait for them without end."""
    deadline = time.monotonic() + _RETURN_SECS
    # Python waits for threads of pools also where they are daemons, as those are that a handler's thread has started.
    in_pools = set(getattr(pool_threads, "_threads_queues", ()))
    threads = [each for each in threading.enumerate() if not each.daemon or each in in_pools]
    threads.remove(threading.main_thread())
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hung = [each.name for each in threads if each.is_alive()]
    if not hung:
        return
    logger.warning("the program ends without %d threads that have not returned: %s", len(hung), ", ".join(hung))
    for process in multiprocessing.active_children():  # of pools; nobody would end them
        process.kill()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
