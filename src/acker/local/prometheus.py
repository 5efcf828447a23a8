"""The exporter for Prometheus (`pip install 'acker[prometheus]'`), for topologies and consumers.

>>> from acker.local import LocalRuntime                                    # doctest: +SKIP
>>> with LocalRuntime(WordCount) as runtime, serve(runtime, 9464):          # doctest: +SKIP
...     runtime.run_until()
"""

from acker.observe.prometheus import MetricsServer, RuntimeCollector, exposition, serve

__all__ = ["MetricsServer", "RuntimeCollector", "exposition", "serve"]
