"""Servers of Spark Connect on ports of their own."""

from __future__ import annotations

from pyspark.sql import SparkSession


def on_a_free_port(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Let the server that a session of this process starts listen anywhere, and let the session find it.

    Else two servers on a machine want the same port, and a session asks the server of another one.
    """
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    def port() -> int:
        service = "org.apache.spark.sql.connect.service.SparkConnectService$"
        jvm = SparkSession._instantiatedSession._jvm  # as PySpark's own tests do
        return getattr(getattr(jvm, service), "MODULE$").localPort()

    DefaultChannelBuilder.default_port = staticmethod(port)
    return builder.config("spark.connect.grpc.binding.port", "0")
