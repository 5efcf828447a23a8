"""The exporter for OpenTelemetry (`pip install 'acker[otel]'`; your program installs and sets up the SDK)."""

from __future__ import annotations

from opentelemetry.metrics import MeterProvider, get_meter_provider

from acker import __version__
from acker.observe.metric_names import HasMetrics, HasStats
from acker.observe.otel import QUANTILES, Instruments

__all__ = ["QUANTILES", "Instruments", "instrument"]


def instrument(runtime: HasStats | HasMetrics, meter_provider: MeterProvider | None = None) -> Instruments:
    """Create instruments of OpenTelemetry for the metrics of a runtime.

    A histogram becomes three instruments, because the API has no observable histogram: the counters `.count` and
    `.sum`, and the gauge `.quantile` with the attribute `quantile`: 0.5, 0.9, 0.99.

    Parameters
    ----------
    runtime : LocalRuntime, Consumer or AckerListener
    meter_provider : MeterProvider, optional
        By default the global one.

    Returns
    -------
    Instruments
        Close it when the runtime has ended, so that the runtime can be freed.
    """
    provider = get_meter_provider() if meter_provider is None else meter_provider
    return Instruments(runtime, provider.get_meter("acker", __version__))
