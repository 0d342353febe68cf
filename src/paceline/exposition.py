"""Metrics as Prometheus reads them: families of one table, written as plain text or as OpenMetrics."""

from collections.abc import Iterable, Mapping
from typing import Any

Description = tuple[str, tuple[str, ...], str]
"""Of a metric: type (counter, gauge, summary), labels, meaning."""
ExposedSample = tuple[str, tuple[str, ...], float | tuple[int, float]]
"""The metric's name, the values of its labels, the value (of a summary: count and sum)."""


class _Collector:
    """What prometheus_client asks, once."""

    def __init__(self, metrics: Mapping[str, Description], samples: Iterable[ExposedSample]) -> None:
        self._metrics, self._samples = metrics, samples

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        kinds: dict[str, Any] = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "summary": SummaryMetricFamily,
        }
        families = {
            name: kinds[kind](name, meaning, labels=labels)
            for name, (kind, labels, meaning) in self._metrics.items()
        }
        for name, labels, value in self._samples:
            families[name].add_metric(labels, *(value if isinstance(value, tuple) else (value,)))
        return families.values()

    def describe(self) -> Iterable[Any]:
        """Nothing: registering must not use the samples up."""
        return []


def exposed(
    metrics: Mapping[str, Description], samples: Iterable[ExposedSample], openmetrics: bool = False
) -> bytes:
    """The answer to `GET /metrics`; in the form of OpenMetrics for who asks for that."""
    from prometheus_client import CollectorRegistry, exposition
    from prometheus_client.openmetrics import exposition as open_exposition

    registry = CollectorRegistry()
    registry.register(_Collector(metrics, samples))
    written: Any = open_exposition if openmetrics else exposition
    return bytes(written.generate_latest(registry))


def wants_openmetrics(accept: str) -> bool:
    """Whether a request's header asks for OpenMetrics, as Prometheus does."""
    return "application/openmetrics-text" in accept


def content_type(text: bytes) -> str:
    """Of a page of metrics; OpenMetrics ends with a mark."""
    if text.endswith(b"# EOF\n"):
        return "application/openmetrics-text; version=1.0.0; charset=utf-8"
    return "text/plain; version=0.0.4; charset=utf-8"
