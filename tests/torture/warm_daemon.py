"""Forks the Python workers of Spark, after it has imported what each of them would import for itself."""

import pandas  # noqa: F401
import pyarrow.compute  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import acker.spark  # noqa: F401

if __name__ == "__main__":
    manager()
