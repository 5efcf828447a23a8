"""Hadoop's configuration as options of pyarrow's filesystems, without any store."""

import pickle

import pytest
from pyarrow import fs

from acker._files.object_stores import open_store, s3_options
from acker._files.paths import Place, list_files, locate, path_in_store
from acker.errors import ArgumentValueError

KEYS = {"fs.s3a.access.key": "someone", "fs.s3a.secret.key": "a secret"}
GIVEN = {"access_key": "someone", "secret_key": "a secret"}


def options_of(**settings):
    """Return the options of a bucket; underscores stand for the dots of names."""
    return s3_options("shop", {f"fs.s3a.{name.replace('_', '.')}": value for name, value in settings.items()}.get)


@pytest.mark.parametrize(
    ("endpoint", "options"),
    [
        (
            {"endpoint": "http://minio:9000", "path_style_access": "true"},
            {"scheme": "http", "endpoint_override": "minio:9000", "force_virtual_addressing": False},
        ),
        (
            {"endpoint": "minio:9000/", "connection_ssl_enabled": "false", "endpoint_region": "north"},
            {"scheme": "http", "endpoint_override": "minio:9000", "force_virtual_addressing": True, "region": "north"},
        ),
        (
            {"endpoint": "https://127.0.0.1:1"},
            {"scheme": "https", "endpoint_override": "127.0.0.1:1", "force_virtual_addressing": False},
        ),
        ({"endpoint": "s3.eu-central-1.amazonaws.com"}, {"scheme": "https", "region": "eu-central-1"}),
        ({"endpoint_region": "eu-west-3"}, {"scheme": "https", "region": "eu-west-3"}),
        (
            {"endpoint": "a:1", "proxy_host": "gate", "proxy_port": "8", "proxy_username": "u", "proxy_password": "p"},
            {"proxy_options": {"scheme": "http", "host": "gate", "port": 8, "username": "u", "password": "p"}},
        ),
    ],
)
def test_an_endpoint_of_hadoop_is_one_of_pyarrow(endpoint, options):
    found = options_of(access_key="someone", secret_key="a secret", **endpoint)
    region = {"region": "us-east-1"} if "endpoint" in endpoint else {}
    expected = region | options | GIVEN
    assert {name: found[name] for name in expected} == expected
    assert ("endpoint_override" in found) is ("endpoint_override" in options or "proxy_options" in options)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"session_token": "t"}, {}),
        ({"access_key": "someone", "secret_key": "a secret"}, GIVEN),
        ({"access_key": "someone", "secret_key": "a secret", "session_token": "t"}, GIVEN | {"session_token": "t"}),
        ({"access_key": "other", "secret_key": "x", "bucket_shop_access_key": "someone",
          "bucket_shop_secret_key": "a secret"}, GIVEN),
        ({"aws_credentials_provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"}, {"anonymous": True}),
        (
            {"aws_credentials_provider": "\n a.b.SimpleAWSCredentialsProvider,\n a.IAMInstanceCredentialsProvider\n "},
            {},
        ),
        (
            {"aws_credentials_provider": "x.auth.AssumedRoleCredentialProvider", "assumed_role_arn": "arn:role",
             "assumed_role_session_name": "acker"},
            {"role_arn": "arn:role", "session_name": "acker"},
        ),
    ],
)  # fmt: skip
def test_credentials_are_those_of_the_first_provider_that_has_any(settings, options):
    found = options_of(endpoint="a:1", **settings)
    credentials = found.keys() & {"access_key", "secret_key", "session_token", "anonymous", "role_arn", "session_name"}
    assert {name: found[name] for name in credentials} == options


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"aws_credentials_provider": "com.shop.Vault"}, "com.shop.Vault, which exists in Java alone; set fs"),
        ({"aws_credentials_provider": "x.SimpleAWSCredentialsProvider"}, "no provider .* has credentials: set fs.s3a"),
        ({"encryption_algorithm": "SSE-C"}, "is SSE-C, which pyarrow cannot read; let the bucket encrypt"),
    ],
)  # fmt: skip
def test_what_only_java_has_is_refused_with_the_mend(settings, text):
    with pytest.raises(ArgumentValueError, match=f"bucket shop: .*{text}"):
        options_of(endpoint="a:1", **settings)


@pytest.mark.leaves_behind("Arrow's client of S3 has an event loop as long as the process lives")
def test_a_worker_gets_the_filesystem_whole_and_nothing_shows_its_secrets():
    settings = {**KEYS, "fs.s3a.endpoint": "http://127.0.0.1:1", "fs.s3a.endpoint.region": "here"}
    store, path = locate("s3a://shop/a%20b/c", lambda uri: open_store(uri, settings.get))
    place = Place("s3a://shop/a b/c", store, path)
    again = pickle.loads(pickle.dumps(place)).below("d")
    assert (str(again), again.path) == ("s3a://shop/a b/c/d", "shop/a b/c/d")
    assert type(again.filesystem) is type(store) and again.filesystem.equals(store)
    assert "secret" not in f"{place!r}{vars(store)}{vars(again)}"
    assert locate(again) == (again.filesystem, again.path)


def test_an_account_of_azure_has_its_key_from_hadoop():
    name = "abfss://box@shop.dfs.core.windows.net/a"
    assert open_store(name, {}.get) is None
    store = open_store(name, {"fs.azure.account.key.shop.dfs.core.windows.net": "a2V5"}.get)
    assert isinstance(store, fs.AzureFileSystem) and path_in_store(name) == "box/a"
    assert open_store("gs://box/a", {}.get) is None


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        (
            "wasbs://box@shop.blob.core.windows.net/a",
            "wasbs: pyarrow opens no filesystem .*; use s3a, abfss, gs or hdfs",
        ),
        ("dbfs:/a", "dbfs: pyarrow opens no filesystem .* or a path where the storage is mounted"),
    ],
)
def test_a_uri_that_pyarrow_does_not_know_is_refused_with_the_mend(uri, text):
    with pytest.raises(ArgumentValueError, match=text):
        list_files(uri)
