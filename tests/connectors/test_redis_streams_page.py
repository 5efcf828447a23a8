"""The example of docs/redis-streams.md, on a real server."""

from __future__ import annotations

import re

import redis as redis_py

from acker.connectors import Outgoing
from acker.connectors.redis_streams import RedisStreams, RedisStreamsPublisher
from blocks import ROOT
from tests.connectors.running_page import programs_of, run_consumer
from tests.servers import PATIENCE_SECS


def test_the_consumer_of_the_page(redis):
    (block,) = programs_of("redis-streams.md", "tests/connectors/test_redis_streams_page.py")
    with redis_py.Redis.from_url(redis.url, socket_timeout=PATIENCE_SECS) as client:
        client.delete("orders", "orders-dead")
        for order in ("lamp desk", "rug"):
            client.xadd("orders", {"value": order})

        def is_done() -> bool:
            (group,) = client.xinfo_groups("orders") or [{}]
            return group.get("entries-read") == 2 and not group["pending"]

        printed = run_consumer(block, {"redis://localhost:6379": redis.url}, is_done)
        assert sorted(printed) == ["packed desk", "packed lamp", "packed rug"]
        assert not client.exists("orders-dead")
        client.delete("orders")


def test_the_permissions_of_the_page_are_enough(redis):
    page = (ROOT / "docs/redis-streams.md").read_text(encoding="utf-8")
    reading, writing = re.search(r"permissions `([^`]+)` on the key of the stream, and `([^`]+)`", page).groups()
    with redis_py.Redis.from_url(redis.url, socket_timeout=PATIENCE_SECS) as client:
        client.delete("orders")
        words = f"ACL SETUSER reader reset on >s3cret ~orders +@connection {reading} {writing}"
        client.execute_command(*words.split())
        url = redis.url.replace("//", "//reader:s3cret@")
        with RedisStreamsPublisher(url, stream="orders") as publisher:
            assert publisher.publish([Outgoing(b"1"), Outgoing(b"2")]) == [None, None]
        first, second = (RedisStreams(url, stream="orders", group="packers", consumer=name) for name in "ab")
        first.open(None, 10)
        one, two = first.poll(10, 0.0)
        assert not first.extend([one, two])
        one.receipt.renewed -= 60  # its ack asks for the owner
        first.ack([one])
        first.release([two])
        first.close()
        second.open(None, 10)
        (two,) = second.poll(10, 0.0)
        second.ack([two])
        second.close()
        assert client.xpending("orders", "packers")["pending"] == 0
        (left,) = client.xinfo_consumers("orders", "packers")
        assert left["name"] == b"a", "it had gone with an entry pending"
        client.delete("orders")
        client.execute_command("ACL", "DELUSER", "reader")
