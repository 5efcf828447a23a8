"""Start a message broker for tests and examples, in a new folder and on free ports: broker.py rabbitmq.

An installed broker is used as it is. Otherwise it is downloaded, and unpacked below build/brokers: that needs no root
and starts no service. ACKER_INSTALL_BROKERS=0 forbids the download.

As soon as the broker answers, one line of JSON on the standard output gives its URL, its folder, and whatever else its
clients need. Then it obeys: each line on the standard input is one of stop, kill, start, pause, resume. It answers each
with a line of JSON when it has done so. A broker that was stopped or killed starts again on the same ports, with its
data. When the standard input ends, the broker is stopped and its folder removed, so it does not outlive the program
that started it. Standard library only.

Exit codes: 0 stopped; 1 it did not start; 3 no broker is installed and this machine cannot have it, 4 it could but the
download failed or is forbidden, each with the reason.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from brokers import BY_NAME
from brokers.errors import NotBroughtError, StartError, UnavailableError
from brokers.server import Server, is_free

UNAVAILABLE = 3
NOT_BROUGHT = 4
STARTS_MAX = 3


def obey(server: Server, order: str) -> dict[str, object]:
    """Do what a line of the standard input says; return the answer."""
    orders = {
        "stop": server.stop,
        "kill": server.kill,
        "start": server.start,
        "pause": server.pause,
        "resume": server.resume,
    }
    if order not in orders:
        return {"error": f"unknown order {order!r}: expected one of {', '.join(orders)}"}
    try:
        orders[order]()
    except StartError as why:
        return {"error": str(why)}
    return {"done": order}


def serve(server: Server) -> None:
    """Run a server until the standard input ends."""
    server.prepare()
    server.start()
    told = {"url": server.url, "folder": str(server.folder), **server.facts()}
    print(json.dumps(told), flush=True)
    for line in sys.stdin:
        print(json.dumps(obey(server, line.strip())), flush=True)


def main() -> int:
    """Run a broker, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("broker", choices=sorted(BY_NAME))
    parser.add_argument("--port", help="the port for clients, such as 5672; by default a free one", type=int)
    parser.add_argument("--root", help="look and unpack below this folder only", type=Path)
    options = parser.parse_args()
    kind = BY_NAME[options.broker]
    try:
        root = kind.origin.find_or_bring(dict(os.environ), options.root)
    except UnavailableError as why:
        print(why, file=sys.stderr)
        return NOT_BROUGHT if isinstance(why, NotBroughtError) else UNAVAILABLE
    for starts_left in reversed(range(STARTS_MAX)):
        ports: list[int] = []
        try:
            with (
                tempfile.TemporaryDirectory(prefix=f"acker-{options.broker}-", ignore_cleanup_errors=True) as folder,
                contextlib.closing(kind(root, Path(folder), options.port)) as server,
                contextlib.suppress(KeyboardInterrupt),
            ):
                ports = server.ports
                serve(server)
            break
        except StartError as why:
            # It has ended, so a port that is in use was taken by another program before the server listened on it.
            if starts_left and options.port is None and not all(map(is_free, ports)):
                continue
            print(why, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it cleans up after itself
    sys.exit(main())
