"""Tracing set-up: spans go to an OTLP endpoint, or to the provider that the program installed itself."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from taskframework.settings import Settings
from taskframework.telemetry import is_tracing


def configure_tracing(settings: Settings) -> Callable[[], None]:
    """Install a tracer provider if an endpoint is set and the program has not installed a provider.

    Returns:
        The function to call at the end.
    """
    observability = settings.observability
    if not observability.tracing or observability.otlp_endpoint is None or is_tracing():
        return lambda: None
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: settings.app.source}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=observability.otlp_endpoint)))
    trace.set_tracer_provider(provider)
    return provider.shutdown
