"""Jobs, and trees of them, with replies in memory and over a real Redis."""

import gc
import multiprocessing
import pickle
import signal
import subprocess
import sys
import threading
import warnings

import pytest
import redis as redis_py

from acker import (
    ArgumentTypeError,
    ArgumentValueError,
    ConnectionLostError,
    ForkedError,
    JobsError,
    RuntimeStateError,
    TupleStateError,
)
from acker.remote import MemoryReplies, current, detached, fail, job, tree
from acker.remote.jobs import working_for
from acker.remote.ledger import Ledger
from acker.remote.nats import NATSReplies
from acker.remote.rabbitmq import RabbitMQReplies
from acker.remote.redis import RedisReplies
from acker.remote.replies import _MemoryInbox
from acker.remote.wire import read_token

PATIENCE_SECS = 120.0


OVER_BROKERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("rabbitmq", "nats")]


@pytest.fixture(params=["memory", "redis", *OVER_BROKERS])
def replies(request):
    """Replies; a job elsewhere makes its own, but those in memory are of one process."""
    if request.param == "memory":
        made = MemoryReplies()
    elif request.param == "rabbitmq":
        made = RabbitMQReplies(request.getfixturevalue("rabbitmq").url)
    elif request.param == "nats":
        made = NATSReplies(request.getfixturevalue("nats").url)
    else:
        made = RedisReplies(request.getfixturevalue("redis").url)
    with made:
        yield made


@pytest.fixture
def over_redis(redis):
    with RedisReplies(redis.url, report_secs=PATIENCE_SECS, socket_timeout=PATIENCE_SECS) as made:
        yield made


@pytest.fixture
def client(redis):
    with redis_py.Redis.from_url(redis.url, socket_timeout=PATIENCE_SECS) as client:
        yield client


def streams(client):
    return set(client.scan_iter("acker:replies:*"))


def wait_for(condition):
    """Wait until something holds that another thread or process does."""
    end = threading.Event()
    for _ in range(int(PATIENCE_SECS * 100)):
        if condition():
            return
        end.wait(0.01)
    raise AssertionError("it has not come to hold")


def test_a_tree_ends_with_its_last_job_at_any_depth(replies):
    with tree(replies) as jobs:
        first, second = jobs.token("split"), jobs.token("bill")
    with job(second, replies):
        pass
    with job(first, replies, "split") as part:
        below = [part.token("pack") for _ in range(20)]
    for token in below[1:]:
        with job(token, replies):
            pass
    wait_for(lambda: [(each.name, each.made_by) for each in jobs.missing()] == [("pack", "split")])
    with pytest.raises(TimeoutError, match=r"1 jobs are not done after 0 s, such as pack, made by split, .* ago"):
        jobs.wait(0)
    with job(below[0], replies):
        pass
    jobs.wait(PATIENCE_SECS)
    assert jobs.missing() == [] and not jobs.alive


def test_a_block_without_jobs_is_done_and_current_follows_the_blocks(replies):
    assert current() is None
    with tree(replies) as jobs:
        assert current() is jobs
        with job(jobs.token(), replies) as part:
            assert current() is part
            with detached(), pytest.raises(TupleStateError, match=r"this is a block of detached\(\)"):
                current().token("mail")
            assert current() is part
        assert current() is jobs
    assert current() is None
    jobs.wait(PATIENCE_SECS)
    with tree(replies) as jobs:
        pass
    jobs.wait(0)


@pytest.mark.parametrize("again", [False, True])
def test_repeated_jobs_count_once_and_await_what_the_first_one_made(replies, again):
    with tree(replies) as jobs:
        token = jobs.token("split")
    with job(token, replies, "split") as part:
        child = part.token("pack")
    with job(token, replies, "split") as part:
        part.token("of a run that does not count")
    if again:
        with job(child, replies, "pack"):
            pass
    with job(child, replies, "pack"):
        pass
    jobs.wait(PATIENCE_SECS)


def test_a_failed_job_fails_the_tree_with_its_name_and_reason(replies):
    with tree(replies) as jobs:
        token = jobs.token()
        jobs.token()
    with pytest.raises(ValueError, match="no lamp"), job(token, replies, "pack"):
        raise ValueError("no lamp")
    with pytest.raises(JobsError, match=r"^pack: ValueError: no lamp$"):
        jobs.wait(PATIENCE_SECS)


def test_a_job_in_a_queue_of_dead_letters_can_be_failed(replies):
    with tree(replies) as jobs:
        token = jobs.token()
    fail(token, replies, "it was given up")
    with pytest.raises(JobsError, match="it was given up"):
        jobs.wait(PATIENCE_SECS)


def test_a_job_that_has_reported_gives_no_token(replies):
    with tree(replies) as jobs:
        with job(jobs.token("split"), replies, "split") as part:
            pass
        with pytest.raises(TupleStateError, match="has ended, so its message may be acked already"):
            part.token("pack")
        with pytest.raises(TupleStateError, match="acked or failed once"):
            part.ack()
    with pytest.raises(TupleStateError, match="the block of its tree has ended"):
        jobs.token("pack")
    jobs.wait(PATIENCE_SECS)


@pytest.mark.parametrize("reason", [None, "no post"])
def test_a_job_that_its_work_has_ended_is_not_ended_again_by_its_queue(replies, reason):
    with tree(replies) as jobs:
        token = jobs.token()
    part = job(token, replies, "pack")
    part.fail("no lamp")
    assert part.is_ended
    part.finish(reason)
    with pytest.raises(JobsError, match="pack: no lamp"):
        jobs.wait(PATIENCE_SECS)
    assert (replies.counts.reports, replies.counts.duplicates) == (1, 0)


def test_a_job_whose_send_may_have_been_lost_fails(replies):
    with tree(replies) as jobs:
        token = jobs.token()
    with job(token, replies, "split") as part:
        part.token("pack")
        part.not_sent("the send of pack raised OSError")
    with pytest.raises(JobsError, match="split: the send of pack raised OSError"):
        jobs.wait(PATIENCE_SECS)


def test_a_block_that_raises_forgets_its_jobs(replies):
    jobs = tree(replies)
    token = jobs.token()
    with pytest.raises(ZeroDivisionError), jobs:
        raise ZeroDivisionError
    with job(token, replies):
        pass
    with pytest.raises(JobsError, match="ZeroDivisionError"):
        jobs.wait(PATIENCE_SECS)
    wait_for(lambda: replies.counts.late == 1)


def test_a_tree_that_nobody_holds_is_forgotten(replies):
    with tree(replies) as jobs:
        token = jobs.token()
    del jobs
    gc.collect()
    with job(token, replies):
        pass
    wait_for(lambda: replies.counts.late == 1)


def test_reports_of_other_trees_and_of_no_sense_are_counted(replies, caplog):
    with tree(replies) as jobs:
        token = jobs.token("pack")
    parts = read_token(token)
    assert replies.send(parts.address, b"nonsense")
    with job(parts._replace(tree=1).text, replies), job(parts._replace(maker=1).text, replies):
        pass
    # A report is counted when it comes, and then looked at.
    wait_for(lambda: (replies.counts.malformed, replies.counts.late) == (1, 1))
    assert replies.counts.reports == 3
    assert "could not be read as reports and were ignored, the last one since it is a report" in caplog.text
    assert [each.name for each in jobs.missing()] == ["pack"]


def test_a_job_of_an_address_that_is_gone_ends_and_says_so(replies, caplog):
    with tree(replies) as jobs:
        token = read_token(jobs.token())
    with job(token._replace(address=bytes(13)).text, replies, "pack") as part:
        assert not part.alive
    assert "nobody waits for <Job pack, ended> any more, so its report is dropped" in caplog.text
    with job(token.text, replies) as part:
        assert part.alive
    jobs.wait(PATIENCE_SECS)


def test_the_end_of_replies_fails_what_is_open(redis, client):
    with RedisReplies(redis.url) as replies, tree(replies) as jobs:
        jobs.token()
        name = replies._prefix + read_token(jobs.token()).address.hex()
        assert client.pttl(name) > 0
    with pytest.raises(JobsError, match="its replies were closed"):
        jobs.wait(0)
    assert not client.exists(name)


def test_other_things_are_no_replies():
    with pytest.raises(ArgumentTypeError, match="expected Replies, got str"):
        tree("redis://localhost")


def test_more_jobs_than_jobs_max_fail_a_tree(replies):
    replies.jobs_max = 2
    with tree(replies) as jobs:
        jobs.token()
        jobs.token()
        with pytest.raises(JobsError, match="no token for pack: more than 2 jobs derive from it"):
            jobs.token("pack")
    with pytest.raises(JobsError, match="raise jobs_max if so many are right"):
        jobs.wait(0)


def test_a_forked_process_takes_no_token_of_its_parent(replies):
    """It would give the name that the parent gives next, and two jobs would count as one."""
    with tree(replies) as jobs:
        of_tree = error_of_fork(lambda: current().token("pack"))
        with job(jobs.token(), replies):
            of_job = error_of_fork(lambda: current().token("pack"))
    assert "make tokens, and wait, in the process that made the tree" in of_tree
    assert "take tokens in the process that runs the job" in of_job
    assert "make tokens, and wait, in the process that made the tree" in error_of_fork(lambda: jobs.wait(0))
    jobs.wait(PATIENCE_SECS)


def error_of_fork(work):
    """Return the text of the ForkedError that something raises in a forked process."""

    def in_child(pipe):
        try:
            work()
        except ForkedError as error:
            pipe.send(str(error))
        else:
            pipe.send("no error")

    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(there,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, which is what this is about
        child.start()
    assert here.poll(PATIENCE_SECS)
    text = here.recv()
    child.join()
    return text


def test_replies_in_memory_are_of_one_process():
    """A report to the copy in a forked process would look confirmed, and nobody would read it."""
    with MemoryReplies() as replies, tree(replies) as jobs:
        token = jobs.token()
        assert "between processes use" in error_of_fork(lambda: job(token, replies).ack())
        job(token, replies).ack()
    with pytest.raises(ArgumentTypeError, match="cannot be pickled: they are of one process"):
        pickle.dumps(replies)


def test_a_thread_that_asks_while_the_block_ends_gets_no_token(replies):
    """It has passed the look at the block, and the block then ended: whoever waits may have returned."""
    with tree(replies) as jobs:
        pass
    with pytest.raises(TupleStateError, match="the block of its tree has ended, and nobody waits for a further job"):
        jobs._remote.token("pack", jobs._end.begin)
    jobs.wait(0)
    assert jobs._remote.open == 0


@pytest.mark.parametrize("in_job", [False, True])
def test_a_name_that_is_no_text_is_refused_before_it_counts(replies, in_job):
    expected = pytest.raises(ArgumentTypeError, match="as a string, got int")
    with tree(replies) as jobs, job(jobs.token(), replies) as part, expected:
        (part if in_job else jobs).token(5)
    jobs.wait(PATIENCE_SECS)


@pytest.mark.parametrize(
    ("end", "options", "text"),
    [
        ("?protocol=3", {}, "sets protocol: leave that out"),
        ("?decode_responses=True", {}, "sets decode_responses: leave that out"),
        ("", {"expiry_secs": 0.5}, "more than 1, after which it is renewed, not 0.5"),
        ("", {"expiry_secs": float("inf")}, "must be finite"),
        ("", {"report_secs": 0}, "report_secs must be positive and finite, not 0"),
        ("", {"jobs_max": 0}, "jobs_max must be positive, not 0"),
    ],
)
def test_options_that_cannot_work_are_refused(end, options, text):
    with pytest.raises(ArgumentValueError, match=text):
        RedisReplies(f"redis://localhost{end}", **options)


def test_a_wait_in_its_own_block_says_so(replies):
    with tree(replies) as jobs, pytest.raises(RuntimeStateError, match="leave the block first"):
        jobs.wait()


def test_the_collector_may_end_a_tree_within_a_report_to_it(replies, monkeypatch):
    """A finalizer that took the lock of its tree would stop the reader for ever."""
    jobs = tree(replies)
    token = jobs.token()
    jobs.itself = jobs
    collected = []
    apply = Ledger._apply

    def collect_first(ledger, report, now):
        gc.collect()
        collected.append(report)
        return apply(ledger, report, now)

    monkeypatch.setattr(Ledger, "_apply", collect_first)
    gc.disable()
    try:
        del jobs
        job(token, replies).ack()
        wait_for(lambda: collected)
    finally:
        gc.enable()
    with tree(replies) as jobs:
        job(jobs.token(), replies).ack()
    jobs.wait(PATIENCE_SECS)


# ---- faults of the server, and of processes ----


def test_a_server_that_is_away_is_told_of_only_while_somebody_waits(monkeypatch, caplog):
    reads = []

    def fail(inbox, wait_secs):
        reads.append(wait_secs)
        raise ConnectionLostError("not today")

    monkeypatch.setattr(_MemoryInbox, "read", fail)
    monkeypatch.setattr("acker.remote.replies._RETRY_SECS_MAX", 0.01)
    with MemoryReplies() as replies:
        replies.begin_tree().close()
        reads.clear()
        wait_for(lambda: len(reads) > 3)
        quiet = caplog.text
        replies.begin_tree()
        wait_for(lambda: "reports of 1 open trees cannot be read now" in caplog.text)
    assert "of 0 open trees" not in quiet


def test_reports_survive_a_kill_of_the_server(redis, over_redis):
    with tree(over_redis) as jobs:
        early, late = jobs.token("early"), jobs.token("late")
    with job(early, over_redis):
        pass
    redis.kill()
    thread = threading.Thread(target=lambda: job(late, over_redis).ack())
    thread.start()  # it tries until the server is back
    redis.start()
    thread.join()
    jobs.wait(PATIENCE_SECS)


def test_a_stream_that_the_server_has_forgotten_fails_open_trees_at_once(over_redis, client, caplog):
    with tree(over_redis) as jobs:
        token = jobs.token()
    with tree(over_redis) as other:
        other.token()
        client.delete(*streams(client))
        wait_for(lambda: not other.alive)
        with pytest.raises(TupleStateError, match=r"since it has failed: the reply stream is gone: .* volatile-lru"):
            other.token()
    with pytest.raises(JobsError, match="the reply stream is gone: Redis was restarted without its data"):
        jobs.wait(PATIENCE_SECS)
    assert "all 2 open trees fail" in caplog.text
    with job(token, over_redis) as part:
        assert not part.alive
    with tree(over_redis) as jobs:  # the next one has another address
        assert read_token(jobs.token()).address != read_token(token).address
        with job(jobs.token(), over_redis), job(token, over_redis):
            pass


def test_reports_use_one_connection_and_another_one_when_the_server_has_closed_it(over_redis, client):
    with tree(over_redis) as jobs:
        address = read_token(jobs.token()).address

    def connections():
        return {each["id"] for each in client.client_list()}

    assert over_redis.send(address, b"1")
    before = connections()
    assert over_redis.send(address, b"2") and connections() == before
    client.client_kill_filter(_type="normal", skipme=True)
    assert over_redis.send(address, b"3")  # and no ConnectionLostError, for which a job would wait
    jobs.close()


def test_a_report_that_is_interrupted_leaves_no_answer_to_the_next_one(over_redis, monkeypatch):
    with tree(over_redis) as jobs:
        address = read_token(jobs.token()).address
    assert over_redis.send(address, b"")

    sender, read = threading.current_thread(), redis_py.Connection.read_response

    def interrupt(self, **options):
        if threading.current_thread() is sender:  # and not the one that reads reports
            raise KeyboardInterrupt
        return read(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(redis_py.Connection, "read_response", interrupt)
        with pytest.raises(KeyboardInterrupt):
            over_redis.send(address, b"")
    assert not over_redis.send(bytes(13), b"")  # nobody waits there
    jobs.close()


def report_from_forks_and_threads(replies, tokens):
    """Do the jobs of the first two lists of tokens in a forked process each, those of the others in a thread each."""

    def work(tokens):
        for token in tokens:
            with job(token, replies):
                pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        forks = [multiprocessing.get_context("fork").Process(target=work, args=(part,)) for part in tokens[:2]]
        for each in forks:
            each.start()
    threads = [threading.Thread(target=work, args=(part,)) for part in tokens[2:]]
    for each in threads:
        each.start()
    for each in [*forks, *threads]:
        each.join(PATIENCE_SECS)
    assert [each.exitcode for each in forks] == [0, 0]


def test_reports_of_forks_and_threads_do_not_mix(over_redis):
    with tree(over_redis) as jobs:
        tokens = [[jobs.token() for _ in range(50)] for _ in range(4)]
    assert over_redis.send(read_token(tokens[0][0]).address, b"")  # there is a connection that a fork must not use
    report_from_forks_and_threads(over_redis, tokens)
    jobs.wait(PATIENCE_SECS)
    assert over_redis.counts.duplicates == 0


def test_a_server_that_hangs_ends_the_patience_of_a_job_and_not_the_tree(redis, over_redis, caplog):
    with tree(over_redis) as jobs:
        token = jobs.token()
    with RedisReplies(redis.url, socket_timeout=0.05, report_secs=0.2) as impatient:
        redis.pause()
        job(token, impatient, "pack").ack()
        assert "its report was not confirmed within 0.2 s, so its tree may time out" in caplog.text
        assert job(token, impatient).alive  # as far as one can know
        redis.resume()
    with job(token, over_redis):
        pass
    jobs.wait(PATIENCE_SECS)


def test_a_tree_without_a_server_says_so(tmp_path):
    with RedisReplies(f"unix://{tmp_path}/none?password=s3cret") as replies:
        with pytest.raises(ConnectionLostError, match="replies over Redis: ") as caught:
            tree(replies)
        assert "s3cret" not in str(caught.value) + repr(replies)


def test_closed_replies_begin_nothing():
    replies = MemoryReplies()
    with tree(replies):
        reader = next(iter(replies._readers.values()))
    replies.close()
    with pytest.raises(RuntimeStateError, match="these replies are closed"):
        reader.begin()


@pytest.mark.timeout(PATIENCE_SECS)
@pytest.mark.parametrize("kind", ["memory", "redis", "redis that is down"])
def test_the_end_of_replies_does_not_wait_until_a_read_has_waited(kind, redis, client, monkeypatch):
    monkeypatch.setattr("acker.remote.replies.READ_SECS", 10 * PATIENCE_SECS)
    replies = MemoryReplies() if kind == "memory" else RedisReplies(redis.url, expiry_secs=3e4, socket_timeout=1e4)
    waiting = tree(replies)
    token = waiting.token()
    with job(token, replies):
        pass
    wait_for(lambda: not waiting.missing())  # so it reads
    if kind == "redis that is down":
        redis.kill()
    replies.close()
    assert replies.counts.reports == 1 and replies.counts.malformed == 0
    redis.restore()
    assert not client.exists("acker:replies:" + read_token(token).address.hex()) or kind == "redis that is down"


def test_the_end_of_replies_waits_for_the_reader_of_a_lost_address(monkeypatch):
    """Else that thread would still log when the interpreter ends."""
    replies = MemoryReplies()
    ended = []

    def close(inbox):
        wait_for(lambda: not replies._readers)  # the replies are being closed
        ended.append(inbox.address)

    with tree(replies) as jobs:
        address = read_token(jobs.token()).address
        monkeypatch.setattr(_MemoryInbox, "close", close)
        del replies._inboxes[address]
        wait_for(lambda: not jobs.alive)
        replies.close()
    assert ended == [address]


OWNER = """
import sys
from acker.remote import tree
from acker.remote.redis import RedisReplies
with tree(RedisReplies(sys.argv[1])) as jobs:
    print(jobs.token(), flush=True)
    sys.stdin.read()
"""


def test_a_killed_owner_leaves_nothing_behind_and_its_jobs_learn_of_it(redis, over_redis, client):
    before = streams(client)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, redis.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        token = owner.stdout.readline().strip()
        part = job(token, over_redis)
        assert part.alive
        owner.send_signal(signal.SIGKILL)
    (left,) = streams(client) - before
    assert 0 < client.pttl(left) <= 60_000
    client.pexpire(left, 1)  # as if that time had passed
    wait_for(lambda: not client.exists(left))
    assert not part.alive
    part.ack()  # and is dropped


def test_threads_of_one_job_share_it(replies):
    each = 50 if isinstance(replies, RabbitMQReplies) else 500  # which takes a write to disk for each report
    with tree(replies) as jobs:
        token = jobs.token()
    with job(token, replies) as part:
        tokens = []

        def work():
            with working_for(part):
                tokens.extend(current().token() for _ in range(each))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(tokens)) == 4 * each
    for token in tokens:
        job(token, replies).ack()
    jobs.wait(PATIENCE_SECS)


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_job_whose_program_ends_reports_nothing_and_runs_again(replies, end):
    with tree(replies) as jobs:
        token = jobs.token("pack")
    with pytest.raises(end), job(token, replies, "pack"):
        raise end
    with pytest.raises(TimeoutError, match=r"1 jobs are not done after 0 s, such as pack"):
        jobs.wait(0)
    with job(token, replies, "pack"):
        pass
    jobs.wait(PATIENCE_SECS)
