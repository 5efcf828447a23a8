"""The examples of docs/postgresql.md, on a real server."""

from __future__ import annotations

import psycopg

from acker.connectors.postgresql import table_sql
from tests.connectors.running_page import programs_of, run, run_consumer

URL = "postgresql://localhost/shop"


def test_the_programs_of_the_page(postgresql):
    consumer, publisher = programs_of("postgresql.md", "tests/connectors/test_postgresql_page.py")
    with psycopg.connect(postgresql.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS jobs")
        connection.execute(table_sql("jobs"))
        run(publisher, {URL: postgresql.url})

        def values() -> list[bytes]:
            return [value for (value,) in connection.execute("SELECT value FROM jobs ORDER BY id")]

        assert values() == [b"lamp desk", b"sofa"]
        printed = run_consumer(consumer, {URL: postgresql.url}, lambda: values() == [b"sofa"])
        assert sorted(printed) == ["packed desk", "packed lamp"]
        connection.execute("DROP TABLE jobs")


def test_dead_letters_can_be_tried_again_as_the_page_says(postgresql):
    with psycopg.connect(postgresql.url, autocommit=True) as connection:
        connection.execute(table_sql("jobs"))
        connection.execute("INSERT INTO jobs (value, due_at, dead_at, reason) VALUES ('x', NULL, now(), 'why')")
        ((row_id, reason),) = connection.execute("SELECT id, reason FROM jobs WHERE dead_at IS NOT NULL")
        assert reason == "why"
        connection.execute(f"UPDATE jobs SET due_at = now(), dead_at = NULL, attempts = 0 WHERE id = {row_id}")
        consumer, _ = programs_of("postgresql.md", "tests/connectors/test_postgresql_page.py")

        def is_done() -> bool:
            return not connection.execute("SELECT FROM jobs").fetchall()

        assert run_consumer(consumer, {URL: postgresql.url}, is_done) == ["packed x"]
        connection.execute("DROP TABLE jobs")
