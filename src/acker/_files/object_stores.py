"""The filesystems of pyarrow for object stores, by the settings that Hadoop has for them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

from pyarrow import fs

from acker.errors import ArgumentValueError

# Name -> its value in Hadoop's configuration, or None.
Settings = Callable[[str], str | None]

# Filesystems in which a file appears whole when it is closed, below folders that nobody has to make: pyarrow's names.
# Their paths begin with a bucket, a container or a host.
OBJECT_STORES: Final = frozenset({"abfs", "gcs", "s3", "py::hadoop"})
S3_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})
AZURE_SCHEMES: Final = frozenset({"abfs", "abfss"})

# A store that answers 503 for a minute is no reason to end a stream. The waits are 25 ms, 50 ms and so on.
_ATTEMPTS: Final = 12
_AMAZON: Final = re.compile(r"s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com(?:\.cn)?")
# Hadoop's and Amazon's providers of credentials, by the last part of their names: those that give what is in the
# configuration, and those for which pyarrow has its own search in the environment, files and the machine's metadata.
_CONFIGURED: Final = frozenset({"SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider"})
_FOUND: Final = frozenset(
    {
        "ContainerCredentialsProvider",
        "DefaultAWSCredentialsProviderChain",
        "DefaultCredentialsProvider",
        "EC2ContainerCredentialsProviderWrapper",
        "EnvironmentVariableCredentialsProvider",
        "IAMInstanceCredentialsProvider",
        "InstanceProfileCredentialsProvider",
        "ProfileAWSCredentialsProvider",
        "ProfileCredentialsProvider",
        "WebIdentityTokenCredentialsProvider",
        "WebIdentityTokenFileCredentialsProvider",
    }
)
_ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"
_ASSUMED_ROLE: Final = "AssumedRoleCredentialProvider"


class PatientS3(fs.S3FileSystem):
    """S3 that repeats requests for about a minute and a half; pyarrow forgets that when it pickles its own class."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, retry_strategy=fs.AwsDefaultS3RetryStrategy(max_attempts=_ATTEMPTS))

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the class."""
        _, arguments = cast("tuple[Any, tuple[dict[str, Any]]]", super().__reduce__())
        return _patient_s3, arguments


def _patient_s3(options: Mapping[str, Any]) -> PatientS3:
    # A small file is then one request: a process that is killed leaves no upload behind that never ends.
    try:
        return PatientS3(**{**options, "allow_delayed_open": True})
    except TypeError:  # pyarrow 18 has no such option
        return PatientS3(**options)


def open_store(uri: str, settings: Settings) -> fs.FileSystem | None:
    """Return the filesystem of a URI as Hadoop's configuration describes it; None if that describes none.

    Parameters
    ----------
    uri : str
        One with options of its own, behind a question mark, needs none of these.
    settings : callable
    """
    parts = urlsplit(uri)
    if parts.query:
        return None
    if parts.scheme in S3_SCHEMES:
        return _patient_s3(s3_options(parts.netloc, settings))
    if parts.scheme in AZURE_SCHEMES:
        return _azure(parts.netloc.rpartition("@")[2], settings)
    return None


def s3_options(bucket: str, settings: Settings) -> dict[str, Any]:
    """Return the options of pyarrow's S3FileSystem for a bucket.

    Raises
    ------
    ArgumentValueError
        Hadoop's configuration asks for what pyarrow does not have.
    """

    def get(name: str) -> str | None:
        value = settings(f"fs.s3a.bucket.{bucket}.{name}") or settings(f"fs.s3a.{name}")
        return value.strip() if value and value.strip() else None

    encryption = (get("encryption.algorithm") or get("server-side-encryption-algorithm") or "").upper()
    if encryption.startswith(("SSE-C", "CSE")):
        raise ArgumentValueError(
            f"bucket {bucket}: fs.s3a.encryption.algorithm is {encryption}, which pyarrow cannot read; let the bucket"
            " encrypt by itself (SSE-S3, SSE-KMS), or use another bucket for what acker reads and writes"
        )
    options: dict[str, Any] = _credentials(bucket, get)
    is_secure = get("connection.ssl.enabled") != "false"
    endpoint = get("endpoint") or ""
    scheme, separator, host = endpoint.rpartition("://")
    options["scheme"] = scheme if separator else ("https" if is_secure else "http")
    host = host.rstrip("/")
    amazon = _AMAZON.fullmatch(host)
    region = get("endpoint.region") or (amazon["region"] if amazon else None)
    if host and not amazon:
        options["endpoint_override"] = host
        options["region"] = region or "us-east-1"
        options["force_virtual_addressing"] = get("path.style.access") != "true" and not _is_address(host)
    else:
        options["region"] = region or fs.resolve_s3_region(bucket)
    if proxy := get("proxy.host"):
        secured = get("proxy.ssl.enabled") == "true"
        options["proxy_options"] = {
            "scheme": "https" if secured else "http",
            "host": proxy,
            "port": int(get("proxy.port") or (443 if is_secure else 80)),
            "username": get("proxy.username") or "",
            "password": get("proxy.password") or "",
        }
    return options


def _credentials(bucket: str, get: Settings) -> dict[str, Any]:
    """Return the options for credentials: of the first of Hadoop's providers that has any."""
    named = (get("aws.credentials.provider") or "SimpleAWSCredentialsProvider,DefaultCredentialsProvider").split(",")
    access, secret = get("access.key"), get("secret.key")
    for name in filter(None, map(str.strip, named)):
        provider = re.split(r"[.$]", name)[-1]
        if provider in _CONFIGURED:
            if access and secret:
                token = get("session.token")
                return {"access_key": access, "secret_key": secret} | ({"session_token": token} if token else {})
        elif provider == _ANONYMOUS:
            return {"anonymous": True}
        elif provider == _ASSUMED_ROLE:
            session = get("assumed.role.session.name")
            return {"role_arn": get("assumed.role.arn")} | ({"session_name": session} if session else {})
        elif provider in _FOUND:
            return {}
        else:
            raise ArgumentValueError(
                f"bucket {bucket}: fs.s3a.aws.credentials.provider names {name}, which exists in Java alone; set"
                " fs.s3a.access.key and fs.s3a.secret.key, or name a provider for which pyarrow has its own, such as"
                " software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
            )
    raise ArgumentValueError(
        f"bucket {bucket}: no provider of fs.s3a.aws.credentials.provider has credentials: set fs.s3a.access.key and"
        " fs.s3a.secret.key"
    )


def _is_address(host: str) -> bool:
    """Return whether a host is an IP address, which no name of a bucket can stand before."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def _azure(host: str, settings: Settings) -> fs.FileSystem | None:
    """Return the filesystem of an account whose key Hadoop knows; others are found as pyarrow finds them."""
    key = settings(f"fs.azure.account.key.{host}") or settings("fs.azure.account.key")
    return fs.AzureFileSystem(host.partition(".")[0], account_key=key) if key else None
