"""A web service that also consumes a queue: both live and end together, and the health check knows of both.

Run it: python examples/web_app.py redis://localhost:6379 8000

Several workers: REDIS_URL=redis://localhost:6379 uvicorn --factory web_app:from_environment --workers 4

It needs the extras `redis` and `ui`. FastAPI takes the same `lifespan`. Each worker of a server makes its application
after the fork, and so has a consumer of its own. kubernetes.yaml runs it in a cluster.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from acker.connectors import Consumer, Message
from acker.connectors.redis_streams import RedisStreams


async def pack(order: Message[list[str]]) -> None:
    for item in order.value:
        await asyncio.sleep(0.01)
        print("packed", item, flush=True)


def app(url: str) -> Starlette:
    consumer = Consumer(RedisStreams(url, stream="orders", group="packers"), decode=json.loads, drain_secs=20)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(consumer.run_async(pack))
        yield
        consumer.stop()  # uvicorn has the handlers of signals
        await running  # open messages end
        print(f"{consumer.stats().acked} orders were packed", flush=True)

    async def health(_: Request) -> JSONResponse:
        found = consumer.health()
        return JSONResponse(found._asdict(), 200 if found.ok else 503)

    return Starlette(lifespan=lifespan, routes=[Route("/healthz", health)])


def from_environment() -> Starlette:
    return app(os.environ["REDIS_URL"])


if __name__ == "__main__":
    url, port, *host = sys.argv[1:]  # probes of Kubernetes come from outside of the container: 0.0.0.0
    uvicorn.run(app(url), host=host[0] if host else "127.0.0.1", port=int(port), log_level="warning")
