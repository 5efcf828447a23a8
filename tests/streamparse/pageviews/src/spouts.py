import json
from pathlib import Path

from streamparse import ReliableSpout


class PageviewSpout(ReliableSpout):
    """Reads one JSON object a line, as a queue would give them."""

    outputs = ["url", "user", "seconds"]

    def initialize(self, stormconf, context):
        with Path(stormconf["user.pageviews.path"]).open() as lines:
            self.views = [json.loads(line) for line in lines]
        self.position = 0

    def next_tuple(self):
        if self.position < len(self.views):
            view = self.views[self.position]
            self.position += 1
            self.emit([view["url"], view["user"], view["seconds"]], tup_id=self.position)
