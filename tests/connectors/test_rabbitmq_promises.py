"""The promises of docs/promises.md with RabbitMQ: the conformance kit, on classic and on quorum queues."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time

import pika
import pytest

from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher
from acker.testing.connectors import SourceHarness
from tests.connectors.contract import ServerContract
from tests.connectors.proxy import Proxy
from tests.connectors.test_rabbitmq import order
from tests.marks import slow

LONG = 60.0
SECRET = "never-to-be-seen"
USERS = "rabbit_auth_backend_internal"  # a module of the broker
# Answers to the name of a queue how many messages it holds, unacked ones included, which AMQP does not tell. It runs
# within the server: `rabbitmqctl list_queues` takes seconds, and counts quorum queues every five seconds only. What
# starts it prints the port where it answers.
COUNTER = """
Asks = self(),
spawn(fun() ->
    {ok, Listener} = gen_tcp:listen(0, [binary, {packet, line}, {active, false}, {ip, {127, 0, 0, 1}}]),
    {ok, Own} = inet:port(Listener),
    Asks ! {counts_at, Own},
    Count = fun(Name) ->
        {ok, Queue} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, Name)),
        case amqqueue:get_type(Queue) of
            rabbit_quorum_queue ->
                {ok, {_, Number}, _} =
                    ra:leader_query(amqqueue:get_pid(Queue), fun rabbit_fifo:query_messages_total/1),
                Number;
            _ ->
                [{messages, Number}] = rabbit_amqqueue:info(Queue, [messages]),
                Number
        end
    end,
    Serve = fun Next() ->
        {ok, Client} = gen_tcp:accept(Listener),
        {ok, Line} = gen_tcp:recv(Client, 0),
        Answer = try integer_to_binary(Count(binary:part(Line, 0, byte_size(Line) - 1))) catch _:_ -> <<>> end,
        gen_tcp:send(Client, Answer),
        gen_tcp:close(Client),
        Next()
    end,
    Serve()
end),
receive {counts_at, Port} -> Port after 30000 -> none end
"""
numbers = itertools.count()


class Broker:
    """The server, with a user whose password is a secret, and with a counter of messages."""

    def __init__(self, server):
        self.server = server
        self.port = pika.URLParameters(server.url).port
        order(server, f'{USERS}:add_user(<<"kit">>, <<"{SECRET}">>, <<"acker">>)')
        order(server, f'{USERS}:set_permissions(<<"kit">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, <<"acker">>)')
        self.count_port = 0

    def count(self, queue):
        """Return how many messages a queue holds."""
        deadline = time.monotonic() + LONG
        while True:
            answer = b""
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.count_port), LONG) as client:
                client.sendall(f"{queue}\n".encode())
                answer = client.makefile("rb").read()
            if answer:
                return int(answer)
            assert time.monotonic() < deadline, f"no count of {queue}"
            self.start_counter()

    def start_counter(self):
        """Start the counter, which a restart of the server ends."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.count_port)):
            return
        self.count_port = int(order(self.server, COUNTER))


@pytest.fixture(scope="module")
def broker(rabbitmq):
    running = Broker(rabbitmq)
    yield running
    rabbitmq.restore()
    order(rabbitmq, f'{USERS}:delete_user(<<"kit">>, <<"acker">>)')


class ClassicHarness(SourceHarness):
    secret = SECRET
    queue_type = "classic"
    patience_secs = LONG  # a server that starts on a busy machine takes half a minute

    def __init__(self, broker):
        self.broker = broker
        self.proxy = Proxy(broker.port)
        self.queue = f"kit-{next(numbers)}"
        arguments = {"x-queue-type": self.queue_type, "x-dead-letter-exchange": ""}
        self.declare = {"durable": True, "arguments": {**arguments, "x-dead-letter-routing-key": f"{self.queue}-dead"}}
        self.parameters = pika.URLParameters(f"amqp://kit:{SECRET}@127.0.0.1:{self.proxy.port}/%2F")
        with self.channel() as channel:
            channel.queue_declare(self.queue, **self.declare)
            channel.queue_declare(f"{self.queue}-dead", durable=True)

    @contextlib.contextmanager
    def channel(self):
        with pika.BlockingConnection(pika.URLParameters(self.broker.server.url)) as connection:
            yield connection.channel()

    def source(self):
        return RabbitMQ(self.parameters, self.queue, dead_letter_exchange=True)

    def publish(self, values, headers=None):
        with self.channel() as channel:
            channel.confirm_delivery()
            for value in values:
                properties = pika.BasicProperties(delivery_mode=2, headers=dict(headers) if headers else None)
                channel.basic_publish("", self.queue, value, properties)

    def left(self):
        return self.broker.count(self.queue)

    def close(self):
        self.broker.server.restore()
        with self.channel() as channel:
            channel.queue_delete(self.queue)
            channel.queue_delete(f"{self.queue}-dead")
        self.proxy.close()

    def cut(self):
        self.proxy.cut()

    def restart(self):
        self.broker.server.stop()
        self.broker.server.start()

    def stalled(self):
        return self.proxy.stalled()

    def unreachable(self):
        return self.proxy.refusing()

    def mistakes(self):
        url = f"amqp://kit:{SECRET}@127.0.0.1:{self.proxy.port}"
        return [
            RabbitMQ(self.parameters, "nowhere"),
            RabbitMQ(f"{url}/nowhere", self.queue),
            RabbitMQ(f"{url.replace('kit:', 'unknown:')}/%2F", self.queue),
        ]

    def given_up(self):
        with self.channel() as channel:
            taken = iter(lambda: channel.basic_get(f"{self.queue}-dead", auto_ack=True), (None, None, None))
            return [body for _, _, body in taken]

    def publisher(self):
        return RabbitMQPublisher(self.parameters, routing_key=self.queue)

    def publisher_to_nowhere(self):
        return RabbitMQPublisher(self.parameters, routing_key="nowhere")


class QuorumHarness(ClassicHarness):
    queue_type = "quorum"

    def restart(self):
        self.broker.server.kill()
        self.broker.server.start()


class TestClassicQueue(ServerContract):
    test_nothing_is_lost_when_the_broker_restarts = slow(ServerContract.test_nothing_is_lost_when_the_broker_restarts)

    @pytest.fixture(autouse=True)
    def _broker(self, broker):
        self.broker = broker

    def harness(self):
        return ClassicHarness(self.broker)


class TestQuorumQueue(TestClassicQueue):
    test_nothing_is_lost_when_the_broker_restarts = ServerContract.test_nothing_is_lost_when_the_broker_restarts

    def harness(self):
        return QuorumHarness(self.broker)
