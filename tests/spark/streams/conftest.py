"""Table caches that a test makes in its own process end with it, as those of workers do with theirs."""

import pytest

from acker.spark.streams.table_cache import TableCache


@pytest.fixture(autouse=True)
def released_caches(monkeypatch):
    caches = []
    begin = TableCache.__init__

    def init(cache, folder):
        begin(cache, folder)
        caches.append(cache)

    monkeypatch.setattr(TableCache, "__init__", init)
    yield
    for cache in caches:
        cache.release(unused_s=0)
