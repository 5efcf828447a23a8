"""The program that is killed: a consumer with a thread pool, whose leaves write a line each.

    python -m tests.torture.outages.consumer BROKER URL QUEUE FOLDER SEED

SIGTERM lets it end in good order. Each message has two children, each child two leaves. A leaf waits for its turn. Then
it writes the number of the message, the number of the leaf, and a token that names this attempt, in one call of the
system.
"""

from __future__ import annotations

import faulthandler
import itertools
import logging
import os
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from acker.connectors import Child, Consumer
from tests.torture.outages.brokers import BROKERS

# In the folder: a pipe to all consumers, of which each leaf takes a byte.
TURNS: Final = "turns"
CHILDREN: Final = 2
LEAVES: Final = CHILDREN * 2
# One attempt in so many fails.
_FAILS_ONE_IN: Final = 20


def main(arguments: list[str]) -> int:
    """Consume until SIGTERM."""
    name, url, queue, folder, seed = arguments
    log = Path(folder, f"log-{os.getpid()}").open("a", encoding="utf-8")  # noqa: SIM115 - open to the end
    logging.basicConfig(stream=log, level=logging.INFO)
    faulthandler.register(signal.SIGUSR1, log)
    done = os.open(Path(folder, f"done-{os.getpid()}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    turns = os.open(Path(folder, TURNS), os.O_RDWR)  # so that it never ends
    chance = random.Random(f"{seed}-{os.getpid()}")
    tokens = itertools.count()

    def leaf(child: Child, number: int, place: int, token: str) -> None:
        with child:
            os.read(turns, 1)
            os.write(done, f"{number} {place} {token}\n".encode())

    def branch(child: Child, number: int, place: int, token: str) -> None:
        with child:
            if chance.randrange(_FAILS_ONE_IN) == 0:
                raise LookupError("drawn to fail")
            for each in (2 * place, 2 * place + 1):
                leaves.submit(leaf, child.child(), number, each, token)

    source = BROKERS[name].source(url, queue)
    options = {"timeout_secs": 60.0, "open_max": 20, "backoff_secs": 0.01, "backoff_secs_max": 0.1, "drain_secs": 20.0}
    with (
        ThreadPoolExecutor(2) as branches,
        ThreadPoolExecutor(2) as leaves,
        Consumer(source, **options) as consumer,  # type: ignore[call-overload]
    ):
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        Path(folder, f"ready-{os.getpid()}").touch()
        for message in consumer:
            with message:
                number = int(message.value.split()[0])
                token = f"{os.getpid()}.{next(tokens)}"
                for place in range(CHILDREN):
                    branches.submit(branch, message.child(), number, place, token)
    Path(folder, f"stats-{os.getpid()}").write_text(repr(consumer.stats()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
