//! Where the process's own metrics and traces go: `/metrics` for Prometheus, and OTLP where an endpoint is set.

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{
    Resource,
    metrics::{Instrument, SdkMeterProvider, Stream},
    trace::{SdkTracer, SdkTracerProvider},
};
use prometheus::{Encoder, Registry, TextEncoder};

/// The process's metrics and traces.
#[derive(Debug)]
pub(crate) struct Telemetry {
    registry: Registry,
    meters: SdkMeterProvider,
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Starts both; `endpoint` is an OTLP collector's gRPC address. Must be called inside a runtime.
    pub(crate) fn start(endpoint: Option<&str>) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let resource = Resource::builder().with_service_name("gatescope").with_attribute(version_attribute()).build();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()
            .context("metrics")?;
        let meters = SdkMeterProvider::builder().with_reader(exporter).with_resource(resource.clone());
        let mut meters = meters.with_view(per_layer);
        let mut traces = None;
        if let Some(endpoint) = endpoint {
            let to = || format!("OTLP endpoint {endpoint}");
            let metrics = opentelemetry_otlp::MetricExporter::builder().with_tonic().with_endpoint(endpoint);
            meters = meters.with_periodic_exporter(metrics.build().with_context(to)?);
            let spans = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint);
            let spans = spans.build().with_context(to)?;
            traces = Some(SdkTracerProvider::builder().with_batch_exporter(spans).with_resource(resource).build());
        }
        let meters = meters.build();
        opentelemetry::global::set_meter_provider(meters.clone());
        Ok(Self { registry, meters, traces })
    }

    /// What makes spans out of `tracing`'s, where they go anywhere.
    pub(crate) fn tracer(&self) -> Option<SdkTracer> {
        self.traces.as_ref().map(|traces| traces.tracer("gatescope"))
    }

    /// All metrics in Prometheus's text format.
    pub(crate) fn prometheus(registry: &Registry) -> anyhow::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).context("metrics")?;
        Ok(text)
    }

    /// Where `/metrics` reads from.
    pub(crate) fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Sends what is left. Blocks.
    pub(crate) fn stop(self) {
        let traces = self.traces.map(|traces| traces.shutdown());
        let meters = self.meters.shutdown();
        for result in traces.into_iter().chain([meters]) {
            if let Err(error) = result {
                tracing::debug!(%error, "some telemetry was not sent");
            }
        }
    }
}

/// Series that an instrument per layer may have: 65 sources of some 128 layers. Others have the SDK's bound of 2,000.
const LAYER_SERIES: usize = 1 << 13;

fn per_layer(instrument: &Instrument) -> Option<Stream> {
    let is_one = instrument.name().starts_with("gatescope_layer_");
    is_one.then(|| Stream::builder().with_cardinality_limit(LAYER_SERIES).build().ok()).flatten()
}

fn version_attribute() -> opentelemetry::KeyValue {
    opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))
}
