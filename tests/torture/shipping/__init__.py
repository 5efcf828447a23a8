"""Tests of each way to send acker to executors: a job on two executors whose Python lacks it.

    python -m tests.torture.shipping

makes a Python environment without acker, submits the same job to a local cluster of two executors in each way of
docs/shipping.md, and compares every completion with those of one acker.
"""

from tests.torture.shipping.run import (
    CLUSTER,
    Recipe,
    Shipped,
    ShippingError,
    clean_environment,
    copy_package,
    make_environment,
    pack,
    submit,
)

__all__ = [
    "CLUSTER",
    "Recipe",
    "Shipped",
    "ShippingError",
    "clean_environment",
    "copy_package",
    "make_environment",
    "pack",
    "submit",
]
