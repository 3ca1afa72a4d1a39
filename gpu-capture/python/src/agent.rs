//! `gatescope._agent.Agent`.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use gatescope_capture::{Agent as Capture, AgentOptions, Begun, Options, STEP_MICROS, SpoolOptions, StepPart};
use gatescope_routing::{KvLink, LayerSet, ModelShape, Role, RowShape};
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDict, PyString},
};

use crate::arguments::{Rows, hashes, integers};

/// The capture agent: one per process.
#[pyclass(frozen, module = "gatescope._agent")]
pub(crate) struct Agent {
    options: AgentOptions,
    /// Locked with the GIL held and for the time of a clone: `fork`, which needs the GIL as well, never finds it locked.
    running: Mutex<Running>,
}

struct Running {
    capture: Arc<Capture>,
    process: u32,
}

impl Agent {
    /// The agent of this process: a child of a fork has none of its parent's threads, and starts its own.
    fn capture(&self) -> Option<Arc<Capture>> {
        let process = std::process::id();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.process != process {
            // The parent's spool and port are the parent's.
            let options = AgentOptions { spool: None, metrics: None, ..self.options.clone() };
            let capture = Arc::new(Capture::start(&options).ok()?);
            // What the parent's threads held is held for ever here: its end must not be waited for.
            std::mem::forget(std::mem::replace(&mut running.capture, capture));
            running.process = process;
        }
        Some(running.capture.clone())
    }

    /// Calls the agent; whatever goes wrong is counted and logged once, and never reaches the engine.
    fn told(&self, call: impl FnOnce(&Capture) -> Result<(), &'static str>) {
        let told = catch_unwind(AssertUnwindSafe(|| {
            let Some(capture) = self.capture() else { return };
            if let Err(why) = call(&capture) {
                capture.refuse(why);
            }
        }));
        // A panic has said so on stderr by itself.
        let _ = told;
    }
}

fn role(name: &str) -> PyResult<Role> {
    name.parse().map_err(|error| PyValueError::new_err(format!("{error}")))
}

#[pymethods]
impl Agent {
    #[new]
    #[pyo3(signature = (
        collector, *, instance, role = "colocated", run = "default", model = None, agent = None, token = None, spool = None,
        spool_bytes = 4 << 30, ring_bytes = 256 << 20, block_size = 16, metrics = None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        collector: &str,
        instance: &str,
        role: &str,
        run: &str,
        model: Option<&str>,
        agent: Option<&str>,
        token: Option<String>,
        spool: Option<std::path::PathBuf>,
        spool_bytes: u64,
        ring_bytes: usize,
        block_size: u32,
        metrics: Option<String>,
    ) -> PyResult<Self> {
        crate::log::install();
        if block_size == 0 {
            return Err(PyValueError::new_err("block_size 0: expected the positions of a KV block"));
        }
        let export = Options { token, ..Options::new(collector, agent.unwrap_or(instance)) };
        let options = AgentOptions {
            run: run.into(),
            role: self::role(role)?,
            model: model.map(Into::into),
            block_size,
            ring_bytes,
            spool: spool.map(|folder| SpoolOptions { folder, bytes: spool_bytes }),
            metrics,
            ..AgentOptions::new(export, instance)
        };
        let capture = Capture::start(&options).map_err(|error| match error {
            gatescope_capture::StartError::Spool { .. } | gatescope_capture::StartError::Metrics { .. } => {
                PyOSError::new_err(error.to_string())
            }
            error => PyValueError::new_err(error.to_string()),
        })?;
        let running = Running { capture: Arc::new(capture), process: std::process::id() };
        Ok(Self { options, running: Mutex::new(running) })
    }

    #[pyo3(signature = (layers, top_k, num_experts, moe_layers = None))]
    fn model_shape(&self, layers: u64, top_k: u64, num_experts: u64, moe_layers: Option<Vec<usize>>) -> PyResult<()> {
        let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let row = RowShape::new(layers, top_k).map_err(|error| invalid(&error))?;
        let moe_layers: LayerSet = match moe_layers {
            Some(layers) => layers.into_iter().collect(),
            None => (0..row.layers()).collect(),
        };
        let shape = ModelShape::new(row, num_experts, moe_layers).map_err(|error| invalid(&error))?;
        self.told(|capture| {
            capture.model_shape(shape);
            Ok(())
        });
        Ok(())
    }

    #[pyo3(signature = (request_ids, first_positions, row_offsets, rejected, rows))]
    fn capture_step(
        &self,
        request_ids: Vec<Bound<'_, PyString>>,
        first_positions: &Bound<'_, PyAny>,
        row_offsets: &Bound<'_, PyAny>,
        rejected: Option<&Bound<'_, PyAny>>,
        rows: &Bound<'_, PyAny>,
    ) {
        self.told(|capture| {
            let firsts = integers(first_positions)?;
            let offsets = integers(row_offsets)?;
            let rejected = rejected.map(integers).transpose()?;
            if firsts.len() != request_ids.len()
                || offsets.len() != request_ids.len() + 1
                || rejected.as_ref().is_some_and(|rejected| rejected.len() != request_ids.len())
            {
                return Err("a step whose request ids, positions, offsets and rejected counts differ in number");
            }
            let rows = Rows::of(rows)?;
            let view = rows.view()?;
            let parts = request_ids.iter().enumerate().filter_map(|(index, request)| {
                Some(StepPart {
                    request: request.to_str().ok()?,
                    first_position: firsts[index],
                    from: offsets[index],
                    to: offsets[index + 1],
                    rejected: rejected.as_ref().map_or(0, |rejected| rejected[index]),
                })
            });
            capture.capture_step(view, parts);
            Ok(())
        });
    }

    #[pyo3(signature = (
        request_id, *, outer_id, choice = 0, prompt_tokens = None, first_forward = None, attempt = 0, role = None,
        engine_id = None, remote_engine_id = None, remote_request_id = None, prompt_start = None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn start(
        &self,
        request_id: &str,
        outer_id: &str,
        choice: u32,
        prompt_tokens: Option<u32>,
        first_forward: Option<u32>,
        attempt: u32,
        role: Option<&str>,
        engine_id: Option<&str>,
        remote_engine_id: Option<&str>,
        remote_request_id: Option<&str>,
        prompt_start: Option<u32>,
    ) {
        self.told(|capture| {
            let role = match role {
                Some(name) => name.parse().map_err(|_| "a start with a role that is none")?,
                None => self.options.role,
            };
            let link = |engine: Option<&str>, request: Option<&str>| {
                Some(KvLink { engine_id: engine?.into(), request_id: request?.into() })
            };
            let begun = Begun {
                outer_id: outer_id.into(),
                choice,
                role,
                prompt_tokens,
                first_forward,
                prompt_start: prompt_start.filter(|&start| start > 0),
                attempt,
                name: link(engine_id, Some(request_id)),
                prefill: link(remote_engine_id, remote_request_id),
            };
            capture.begun(request_id, begun);
            Ok(())
        });
    }

    fn block_hashes(&self, request_id: &str, first_block: u32, hashes: Vec<Bound<'_, PyBytes>>) {
        self.told(|capture| {
            capture.block_hashes(request_id, first_block, self::hashes(hashes));
            Ok(())
        });
    }

    #[pyo3(signature = (request_id, first_block, hashes, rows = None))]
    fn cached_blocks(
        &self,
        request_id: &str,
        first_block: u32,
        hashes: Vec<Bound<'_, PyBytes>>,
        rows: Option<&Bound<'_, PyAny>>,
    ) {
        self.told(|capture| {
            let rows = rows.map(Rows::of).transpose()?;
            let view = rows.as_ref().map(Rows::view).transpose()?;
            capture.cached_blocks(request_id, first_block, self::hashes(hashes), view);
            Ok(())
        });
    }

    fn preempt(&self, request_id: &str) {
        self.told(|capture| {
            capture.preempted(request_id);
            Ok(())
        });
    }

    #[pyo3(signature = (request_id, *, completion_tokens = None, reason = None))]
    fn finish(&self, request_id: &str, completion_tokens: Option<u32>, reason: Option<&str>) {
        // The collector has no use for it yet; engines say it.
        let _ = reason;
        self.told(|capture| {
            capture.finished(request_id, completion_tokens);
            Ok(())
        });
    }

    fn generation(&self, generation: u32) {
        self.told(|capture| {
            capture.generation(generation);
            Ok(())
        });
    }

    #[pyo3(signature = (timeout = 5.0))]
    fn flush(&self, py: Python<'_>, timeout: f64) -> bool {
        let Some(capture) = self.capture() else { return false };
        py.detach(|| capture.flush(seconds(timeout)))
    }

    #[pyo3(signature = (timeout = 5.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> bool {
        let Some(capture) = self.capture() else { return false };
        py.detach(|| capture.stop(seconds(timeout)))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        let Some(capture) = self.capture() else { return Ok(stats) };
        let (agent, export) = capture.metrics();
        capture.figures().try_for_each(|figure| stats.set_item(figure.name, figure.value))?;
        stats.set_item("connected", export.connected)?;
        stats.set_item("metrics_address", capture.metrics_address().map(|address| address.to_string()))?;
        stats.set_item("step_seconds", agent.step_nanos as f64 / 1e9)?;
        stats.set_item("step_micros_bounds", STEP_MICROS.to_vec())?;
        stats.set_item("step_buckets", agent.step_buckets.to_vec())?;
        Ok(stats)
    }
}

fn seconds(timeout: f64) -> Duration {
    Duration::try_from_secs_f64(timeout).unwrap_or_default()
}
