"""Requests as jobs, with FastAPI on a real uvicorn, and httpx."""

import asyncio
import contextlib
import threading

import fastapi
import httpx
import pytest
import uvicorn

from acker import ArgumentTypeError, JobsError
from acker.remote import MemoryReplies, current, detached, job, tree
from acker.remote.asgi import AckerMiddleware
from acker.remote.httpx import AckerTransport, AsyncAckerTransport
from tests.remote.test_trees import wait_for

PATIENCE_SECS = 60.0
# Of an answer that does not come; the connection before it may take longer.
QUICK = httpx.Timeout(PATIENCE_SECS, read=0.05)


class Shop:
    """A service with an endpoint for each way to end, on a thread of this process.

    Attributes
    ----------
    done : list of str
        What its requests have done.
    """

    def __init__(self, replies):
        self.replies = replies
        self.done = []
        self.may_go_on = threading.Event()
        self.is_busy = threading.Event()
        app = fastapi.FastAPI()
        app.add_middleware(AckerMiddleware, replies=replies)
        for work in (self.pack, self.refuse, self.late, self.stream, self.move, self.slow, self.hand_on):
            app.post(f"/{work.__name__}")(work)
        config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        wait_for(lambda: self.server.started)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def close(self):
        self.may_go_on.set()
        self.server.should_exit = True
        self.thread.join()

    def pack(self):
        self.done.append("pack")
        return {"is awaited": current() is not None}

    def refuse(self, status: int = 500):
        current().token("of an answer that does not count")
        if status == 500:
            raise RuntimeError("no lamp")
        raise fastapi.HTTPException(status)

    def late(self, tasks: fastapi.BackgroundTasks, ends: str = "well"):
        def work():
            self.may_go_on.wait(PATIENCE_SECS)
            if ends == "badly":
                raise OSError("no post")
            self.done.append("late")

        tasks.add_task(work)
        return {}

    async def stream(self):
        async def parts():
            for number in range(3):
                yield b"part"
                if number == 1:
                    self.is_busy.set()
                    while not self.may_go_on.is_set():
                        await asyncio.sleep(0.005)
            self.done.append("stream")

        return fastapi.responses.StreamingResponse(parts())

    def move(self):
        return fastapi.responses.RedirectResponse("/pack", 307)

    def slow(self):
        self.is_busy.set()
        self.may_go_on.wait(PATIENCE_SECS)
        self.done.append("slow")
        return {}

    def hand_on(self):
        token = current().token("post")
        threading.Thread(target=self.post, args=(token,)).start()
        return {}

    def post(self, token):
        with job(token, self.replies, "post"):
            self.may_go_on.wait(PATIENCE_SECS)
            self.done.append("post")


@pytest.fixture
def replies():
    with MemoryReplies() as replies:
        yield replies


@pytest.fixture
def shop(replies):
    shop = Shop(replies)
    yield shop
    shop.close()


@pytest.fixture
def client(shop):
    with httpx.Client(transport=AckerTransport(), base_url=shop.url, timeout=PATIENCE_SECS) as client:
        yield client


def test_a_tree_waits_for_its_requests(replies, shop, client):
    with tree(replies) as jobs:
        assert client.post("/pack").json() == {"is awaited": True}
        assert client.post("/pack", headers={"Acker-Token": jobs.token()}).is_success
        with detached():
            assert client.post("/pack").json() == {"is awaited": False}
    jobs.wait(PATIENCE_SECS)
    assert client.post("/pack").json() == {"is awaited": False}
    assert replies.counts.reports == 2


@pytest.mark.slow
def test_what_a_request_hands_on_is_awaited(replies, shop, client):
    with tree(replies) as jobs:
        assert client.post("/hand_on").is_success
    wait_for(lambda: [each.made_by for each in jobs.missing()] == ["POST 127.0.0.1/hand_on"])
    shop.may_go_on.set()
    jobs.wait(PATIENCE_SECS)
    assert shop.done == ["post"]


@pytest.mark.parametrize("end", ["well", "badly"])
def test_background_tasks_are_a_part_of_their_request(replies, shop, client, end):
    """The client has its answer long before."""
    with tree(replies) as jobs:
        assert client.post(f"/late?ends={end}").is_success
    assert jobs.alive and not shop.done
    shop.may_go_on.set()
    if end == "badly":
        with pytest.raises(JobsError, match="POST /late: OSError: no post"):
            jobs.wait(PATIENCE_SECS)
    else:
        jobs.wait(PATIENCE_SECS)
        assert shop.done == ["late"]


@pytest.mark.parametrize("error", [None, OSError("no post")])
def test_a_request_that_fails_its_part_itself_is_answered_as_usual(replies, error):
    """The server sees what the application raises, and nothing else."""
    answer = [{"type": "http.response.start", "status": 200, "headers": []}, {"type": "http.response.body"}]

    async def app(scope, receive, send):
        current().fail("no lamp")
        for event in answer:
            await send(event)
        if error is not None:
            raise error

    async def send(event):
        sent.append(event)

    with tree(replies) as jobs:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/pack",
            "headers": [(b"acker-token", jobs.token().encode())],
        }
    sent = []
    with contextlib.nullcontext() if error is None else pytest.raises(OSError, match="no post"):
        asyncio.run(AckerMiddleware(app, replies)(scope, None, send))
    assert sent == answer
    with pytest.raises(JobsError, match="POST /pack: no lamp"):
        jobs.wait(PATIENCE_SECS)


@pytest.mark.parametrize("status", [500, 503, 404])
def test_an_error_fails_the_tree_of_the_client_and_the_service_reports_nothing(replies, shop, client, status):
    with tree(replies) as jobs:
        assert client.post(f"/refuse?status={status}").status_code == status
    with pytest.raises(JobsError, match=f"POST 127.0.0.1/refuse was answered with {status}"):
        jobs.wait(PATIENCE_SECS)
    assert replies.counts.reports == 0


def test_a_request_that_is_repeated_with_its_token_may_still_succeed(replies, shop, client):
    with tree(replies) as jobs:
        headers = {"Acker-Token": jobs.token("pack")}
        for path in ("/refuse?status=503", "/pack", "/pack"):
            client.post(path, headers=headers)
    jobs.wait(PATIENCE_SECS)
    wait_for(lambda: replies.counts.reports == 2)
    assert shop.done == ["pack", "pack"]


@pytest.mark.slow
def test_a_timeout_fails_the_tree_and_a_repeat_with_the_same_token_counts_once(replies, shop, client):
    with tree(replies) as jobs, pytest.raises(httpx.ReadTimeout):
        client.post("/slow", timeout=QUICK)
    with pytest.raises(JobsError, match="ReadTimeout"):
        jobs.wait(PATIENCE_SECS)
    with tree(replies) as jobs:
        headers = {"Acker-Token": jobs.token("slow")}
        with pytest.raises(httpx.ReadTimeout):
            client.post("/slow", headers=headers, timeout=QUICK)
    assert jobs.alive
    shop.may_go_on.set()  # the first one goes on, and reports
    jobs.wait(PATIENCE_SECS)
    assert client.post("/slow", headers=headers).is_success


@pytest.mark.slow
def test_a_client_that_never_reads_the_answer_is_no_harm(replies, shop):
    import socket

    with tree(replies) as jobs:
        host, port = shop.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /pack HTTP/1.1\r\nHost: shop\r\nAcker-Token: {jobs.token()}\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(head.encode())
            wait_for(lambda: shop.done)
    jobs.wait(PATIENCE_SECS)


@pytest.mark.slow
def test_an_answer_that_is_cut_off_is_not_done(replies, shop, client):
    """A framework cancels the rest of it, and returns as usual."""
    with tree(replies) as jobs:
        headers = {"Acker-Token": jobs.token("stream")}
        with client.stream("POST", "/stream", headers=headers) as response:
            shop.is_busy.wait(PATIENCE_SECS)
            assert response.is_success
        wait_for(lambda: not shop.server.server_state.tasks)
        assert replies.counts.reports == 0 and not shop.done
        shop.may_go_on.set()
        assert client.post("/stream", headers=headers).content == b"partpartpart"
    jobs.wait(PATIENCE_SECS)


@pytest.mark.slow
def test_a_redirect_is_not_done_and_what_it_leads_to_is(replies, shop, client):
    with tree(replies) as jobs:
        assert client.post("/move", follow_redirects=True).json() == {"is awaited": True}
    jobs.wait(PATIENCE_SECS)
    assert (replies.counts.reports, shop.done) == (1, ["pack"])


@pytest.mark.slow
def test_a_service_that_is_not_there_fails_the_tree(replies):
    with httpx.Client(transport=AckerTransport()) as client, tree(replies) as jobs, pytest.raises(httpx.ConnectError):
        client.post("http://127.0.0.1:9/pack")
    with pytest.raises(JobsError, match="ConnectError"):
        jobs.wait(PATIENCE_SECS)


class Service(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A transport below the one with tokens, with an answer for each request."""

    def __init__(self, status=200, body=(), **headers):
        self.answer = status, body, headers

    def handle_request(self, request):
        status, body, headers = self.answer
        return httpx.Response(status, headers=headers, stream=body or httpx.ByteStream(b""))

    async def handle_async_request(self, request):
        return self.handle_request(request)


class CutBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that ends in an error."""

    def __iter__(self):
        yield b"half"
        raise httpx.ReadTimeout("no more")

    async def __aiter__(self):
        for chunk in self:
            yield chunk


def test_an_answer_that_cannot_be_read_fails_the_tree(replies):
    transport = AckerTransport(Service(body=CutBody()))
    with httpx.Client(transport=transport) as client, tree(replies) as jobs, pytest.raises(httpx.ReadTimeout):
        client.post("http://x/pack")
    with pytest.raises(JobsError, match="POST x/pack raised ReadTimeout: no more"):
        jobs.wait(PATIENCE_SECS)


def test_an_answer_that_a_coroutine_cannot_read_fails_the_tree(replies):
    async def main():
        async with httpx.AsyncClient(transport=AsyncAckerTransport(Service(body=CutBody()))) as client:
            with tree(replies) as jobs, pytest.raises(httpx.ReadTimeout):
                await client.post("http://x/pack")
            return jobs

    with pytest.raises(JobsError, match="POST x/pack raised ReadTimeout: no more"):
        asyncio.run(main()).wait(PATIENCE_SECS)


def test_code_that_stops_to_read_an_answer_fails_nothing(replies):
    client = httpx.Client(transport=AckerTransport(Service(body=CutBody())))
    with client, tree(replies) as jobs, client.stream("POST", "http://x/pack") as response:
        assert next(response.iter_raw()) == b"half"
    with pytest.raises(TimeoutError, match="POST x/pack"):  # it waits for the service
        jobs.wait(0)


@pytest.mark.parametrize(("status", "fails"), [(304, True), (307, False)])
def test_an_answer_that_is_no_redirect_and_not_2xx_fails_the_tree(replies, status, fails):
    service = Service(status, **({} if fails else {"location": "http://x/post"}))
    with httpx.Client(transport=AckerTransport(service)) as client, tree(replies) as jobs:
        assert client.post("http://x/pack").status_code == status
    error, text = (JobsError, "was answered with 304") if fails else (TimeoutError, "POST x/pack")
    with pytest.raises(error, match=text):
        jobs.wait(0)


@pytest.mark.slow
def test_coroutines_have_a_transport_too(replies, shop):
    async def main():
        options = {"base_url": shop.url, "timeout": PATIENCE_SECS}
        async with httpx.AsyncClient(transport=AsyncAckerTransport(), **options) as client:
            with tree(replies) as jobs:
                answers = await asyncio.gather(*(client.post("/pack") for _ in range(20)))
                assert all(answer.json() == {"is awaited": True} for answer in answers)
            return jobs

    asyncio.run(main()).wait(PATIENCE_SECS)
    assert replies.counts.reports == 20


@pytest.mark.slow
def test_a_broken_token_and_two_tokens_let_the_request_run_and_say_so(replies, shop, client, caplog):
    for token in ("a1.nonsense", "å"):
        assert client.post("/pack", headers=[("Acker-Token", token.encode())]).json() == {"is awaited": False}
    with tree(replies) as jobs:
        two = [("Acker-Token", jobs.token()), ("Acker-Token", jobs.token())]
        assert client.post("/pack", headers=two).json() == {"is awaited": False}
    assert "POST /pack runs, and no message waits for it: this is no token" in caplog.text
    assert replies.counts.damaged_tokens == 3


def test_other_things_are_no_replies():
    with pytest.raises(ArgumentTypeError, match="expected Replies, such as RedisReplies"):
        AckerMiddleware(None, replies="redis://user:s3cret@localhost")
