"""`acker consume`: a consumer and its handler, until a signal."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

from acker.cli.load import UsageError, load_consumer
from acker.cli.topology import page_of
from acker.errors import ArgumentTypeError, ArgumentValueError, PageError, RuntimeStateError


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
    logging.getLogger("acker").setLevel(logging.INFO)
    page = page_of(ui, values=ui_values)
    consumer, function = load_consumer(name, handler)
    is_async = is_coroutine_function(function)
    if (tasks if not is_async else threads) is not None:
        fix = "--threads: it is a coroutine function, so use --tasks" if is_async else "--tasks: use --threads"
        raise UsageError(f"{handler} cannot have {fix}")
    options: dict[str, Any] = {"until": until, "ui": page}
    try:
        if is_async:
            asyncio.run(consumer.run_async(function, tasks=tasks or 100, **options))
        else:
            consumer.run(function, threads=threads or 8, **options)
    except (ArgumentTypeError, ArgumentValueError, PageError, RuntimeStateError) as error:
        raise UsageError(str(error)) from error
    except Exception:
        logging.getLogger("acker").exception("the consumer %s ended", name)
        return 1
    return 0
