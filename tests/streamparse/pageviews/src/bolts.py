from collections import Counter, defaultdict

from streamparse import Stream
from streamparse.bolt import BatchingBolt, Bolt, TicklessBatchingBolt


class VisitBolt(Bolt):
    """Parts good views from broken ones."""

    outputs = [Stream(fields=["url", "seconds"], name="views"), Stream(fields=["user"], name="broken")]

    def process(self, tup):
        url, user, seconds = tup.values
        if seconds < 0:
            self.emit([user], stream="broken")
        else:
            self.emit([url, seconds], stream="views")


class ViewCountBolt(BatchingBolt):
    """Counts the views of a page from tick to tick."""

    outputs = ["url", "views"]
    ticks_between_batches = 2

    def initialize(self, conf, ctx):
        self.counts = Counter()
        self.batches = 0

    def group_key(self, tup):
        return tup.values[0]

    def process_batch(self, key, tups):
        self.batches += 1
        self.counts[key] += len(tups)
        self.emit([key, self.counts[key]])


class LatestBolt(TicklessBatchingBolt):
    """Keeps what was counted last for every page; the first batch is lost on the way to the database."""

    secs_between_batches = 5

    def initialize(self, conf, ctx):
        self.rows = {}
        self.attempts = 0

    def process_batch(self, key, tups):
        self.attempts += 1
        if self.attempts == 1:
            raise OSError("the database went away")
        for tup in tups:
            url, views = tup.values
            self.rows[url] = max(views, self.rows.get(url, 0))


class BrokenBolt(Bolt):
    """Remembers whose views were broken, and says so at each tick."""

    auto_ack = False

    def initialize(self, conf, ctx):
        self.users = defaultdict(int)
        self.ticks = 0

    def process(self, tup):
        self.users[tup.values[0]] += 1
        self.ack(tup)

    def process_tick(self, tup):
        self.ticks += 1
        self.logger.info("%d users with broken views", len(self.users))
