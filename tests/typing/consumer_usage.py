"""A consumer as typed code writes it. Never run: mypy checks it, unneeded ignores included; pyright passes it too."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, assert_type

from acker.connectors import Child, Consumer, ConsumerStats, Message, Source


@dataclass
class Order:
    number: int


def order_of(body: bytes) -> Order:
    return Order(int(body))


def values(source: Source) -> None:
    assert_type(Consumer(source), Consumer[bytes])
    assert_type(Consumer(source, decode=None, trace=True), Consumer[bytes])
    assert_type(Consumer(source, decode=order_of, open_max=5), Consumer[Order])
    assert_type(Consumer(source, decode=Order), Consumer[Order])
    assert_type(Consumer(source, decode=json.loads), Consumer[Any])
    orders = Consumer(source, decode=Order)
    assert_type(iter(orders), Iterator[Message[Order]])
    assert_type(orders.aiter(), AsyncIterator[Message[Order]])
    for message in orders:
        assert_type(message.value, Order)
        assert_type(message.child(), Child)

    Consumer(source, open_max="5")  # type: ignore[call-overload]
    Consumer(source, opens_max=5)  # type: ignore[call-overload]
    Consumer(source, decode=5)  # type: ignore[call-overload]


def pack(item: str, count: int, *, fragile: bool = False) -> float:
    return len(item) * count * fragile


def parts(message: Message[Order], pool: Executor) -> None:
    assert_type(message.submit(pool, pack, "lamp", 2), Future[float])
    assert_type(message.child().submit(pool, pack, "lamp", count=2, fragile=True), Future[float])

    message.submit(pool, pack, "lamp")  # type: ignore[call-arg]
    message.submit(pool, pack, 2, "lamp")  # type: ignore[arg-type]
    message.submit(pool, pack, "lamp", 2, fragil=True)  # type: ignore[call-arg]


async def send(order: Order) -> int:
    return order.number


async def coroutines(message: Message[Order]) -> None:
    assert_type(message.spawn(send(message.value)), asyncio.Task[int])

    message.spawn(send)  # type: ignore[arg-type]
    message.spawn(send())  # type: ignore[call-arg]


def handle(message: Message[Order]) -> None: ...


def handle_bytes(message: Message[bytes]) -> None: ...


async def runs(source: Source) -> None:
    orders = Consumer(source, decode=Order)
    assert_type(orders.run(handle, threads=3, until="empty"), ConsumerStats)
    assert_type(await orders.run_async(coroutines, tasks=3), ConsumerStats)

    orders.run(handle_bytes)  # type: ignore[arg-type]
    orders.run(handle, until="drained")  # type: ignore[arg-type]
    await orders.run_async(handle)  # type: ignore[arg-type]
