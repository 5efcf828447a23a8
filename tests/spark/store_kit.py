"""A bucket on a real server, reached by the settings of Spark alone, and a door before it that may fail or be slow."""

from __future__ import annotations

import http.client
import http.server
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, Self

import boto3.session

from acker._files.object_stores import PatientS3, s3_options
from acker._files.paths import Place

KEY, SECRET = "someone", "a-secret-of-tests"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_NO_KEY = b"<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>"
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"}


class Door:
    """Forwards requests to a server of S3, each on a connection of its own.

    Attributes
    ----------
    url : str
    refusals : int
        So many of the next requests get a 503.
    refused_one_in : int
        And one in so many of all; 0: none.
    hidden_part : str
    hidden : int
        So many of the next requests for an object whose key has this part get a 404, whether it is there or not.
    slow_secs : float
        Each request waits so long.
    requests : Counter
        How many requests of each method came, and how many were refused or hidden.
    """

    def __init__(self, url: str) -> None:
        self.refusals, self.refused_one_in, self.slow_secs = 0, 0, 0.0
        self.hidden_part, self.hidden = "", 0
        self.requests: Counter[str] = Counter()
        self._lock = threading.Lock()
        door, target = self, url.partition("://")[2]

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.close_connection = True
                super().handle_one_request()

            def forward(self) -> None:
                body = self._body()
                if fault := door._fault(self.command, self.path):
                    self._answer(fault[0], {"Content-Type": "application/xml"}, fault[1])
                    return
                time.sleep(door.slow_secs)
                there = http.client.HTTPConnection(target, timeout=600)
                there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in _HOP and name.lower() != "expect":
                        there.putheader(name, value)
                there.putheader("Content-Length", str(len(body)))
                there.endheaders(body)
                answer = there.getresponse()
                content = answer.read()
                headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
                if self.command == "HEAD":
                    headers["Content-Length"] = answer.getheader("Content-Length") or "0"
                self._answer(answer.status, headers, content)
                there.close()

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = b""
                while size := int(self.rfile.readline().partition(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(content)))
                self.send_header("Connection", "close")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 - names of the base class

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _fault(self, method: str, path: str) -> tuple[int, bytes] | None:
        """Return the status and the body of an answer that the server has not given, if it is due."""
        # A list has the key among its parameters.
        is_meant = method in {"GET", "HEAD"} and self.hidden_part in path.partition("?")[0]
        with self._lock:
            self.requests[method] += 1
            self.requests["all"] += 1
            if self.refusals or (self.refused_one_in and self.requests["all"] % self.refused_one_in == 0):
                self.refusals = max(0, self.refusals - 1)
                self.requests["refused"] += 1
                return 503, _SLOW_DOWN
            if self.hidden and is_meant:
                self.hidden -= 1
                self.requests["hidden"] += 1
                return 404, _NO_KEY
            return None


class Bucket:
    """A new bucket, and what Spark is told of it.

    Parameters
    ----------
    url : str
        Of the server.
    jars : Path
        The folder with Hadoop's client.
    """

    def __init__(self, url: str, jars: Path) -> None:
        self.name = f"acker-{uuid.uuid4().hex}"
        self._jars = jars
        self.settings = {
            "fs.s3a.endpoint": url,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": KEY,
            "fs.s3a.secret.key": SECRET,
        }
        options: dict[str, Any] = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        self.client = boto3.session.Session().client("s3", endpoint_url=url, region_name="us-east-1", **options)
        self.client.create_bucket(Bucket=self.name)

    def uri(self, name: str) -> str:
        """Return the URI of a name in the bucket."""
        return f"s3a://{self.name}/{name}"

    def place(self, name: str) -> Place:
        """Return the same for a process that has no Spark."""
        store = PatientS3(**s3_options(self.name, self.settings.get))
        return Place(self.uri(name), store, f"{self.name}/{name}")

    def spark_conf(self, folder: Path) -> dict[str, str]:
        """Write spark-defaults.conf into a folder, and return the variables that make Spark read it."""
        jars = f"{self._jars}/*"
        settings = {f"spark.hadoop.{name}": value for name, value in self.settings.items()}
        lines = {"spark.executor.extraClassPath": jars, **settings}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        # At the end of the driver's class path, where it leaves the archive of Spark's classes of use.
        return {"SPARK_CONF_DIR": str(folder), "SPARK_DIST_CLASSPATH": jars}

    def keys(self, prefix: str) -> list[str]:
        """Return the names that begin so."""
        found = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix)
        return [each["Key"] for each in found.get("Contents", [])]

    def uploads(self) -> list[str]:
        """Return the uploads that were begun and never ended, which cost money and are shown nowhere."""
        return [each["Key"] for each in self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])]
