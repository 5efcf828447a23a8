"""The examples of docs/nats.md, on a real server."""

from __future__ import annotations

import asyncio

import nats as nats_py

from tests.connectors.running_page import programs_of, run, run_consumer

URL = "nats://localhost:4222"


def test_the_programs_of_the_page(nats):
    consumer, publisher = programs_of("nats.md", "tests/connectors/test_nats_page.py")

    def do(work):
        async def connected():
            client = await nats_py.connect(nats.url)
            try:
                return await work(client.jetstream(timeout=30))
            finally:
                await client.close()

        return asyncio.run(connected())

    def is_done():
        infos = do(lambda context: context.consumers_info("orders"))
        return [(info.num_pending, info.num_ack_pending) for info in infos] == [(0, 0)]

    for subject in ("orders", "failed.orders"):
        do(lambda context, subject=subject: context.add_stream(name=subject.partition(".")[0], subjects=[subject]))
    run(publisher, {URL: nats.url})
    printed = run_consumer(consumer, {URL: nats.url}, is_done)
    assert sorted(printed) == ["packed desk", "packed lamp", "packed sofa"]
    for stream in ("orders", "failed"):
        do(lambda context, stream=stream: context.delete_stream(stream))
