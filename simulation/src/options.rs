//! What is simulated.

use std::sync::Arc;

use gatescope_routing::{IdWidth, ModelShape};

use crate::fault::Fault;

/// Most instances of a fleet.
const MAX_INSTANCES: u32 = 1024;
/// Most requests open at once.
const MAX_CONCURRENCY: u32 = 1 << 16;
/// Most tokens that a typical prompt or completion may have.
const MAX_TYPICAL: u32 = 1 << 16;

/// What is simulated: the same options give the same requests, rows and events.
#[derive(Debug, Clone)]
pub struct Options {
    /// Everything that chance decides follows from it.
    pub seed: u64,
    /// Label of the deployment.
    pub run: Arc<str>,
    /// What the instances call their model.
    pub model: Arc<str>,
    /// Its shape.
    pub shape: ModelShape,
    /// Prefill instances, `p0` and so on.
    pub prefill: u32,
    /// Decode instances, `d0` and so on.
    pub decode: u32,
    /// Instances that do both, `c0` and so on.
    pub colocated: u32,
    /// Requests in all; `None` for as many as there is time for.
    pub requests: Option<u64>,
    /// Requests open at once.
    pub concurrency: u32,
    /// Tokens of a typical prompt, beside a shared prefix: half of the prompts are longer.
    pub prompt_tokens: u32,
    /// Tokens of a typical completion.
    pub completion_tokens: u32,
    /// After so many requests the weights are updated, which empties prefix caches; 0 for never.
    pub update_every: u64,
    /// Kinds of faults to choose from.
    pub faults: Vec<Fault>,
    /// Share of the requests that have a fault, where one fits.
    pub fault_rate: f64,
    /// Of the pairs' requests, only those of this decode instance have faults.
    pub faulty_decode: Option<u32>,
    /// After so many requests nearly all are about one topic, whose experts are hot then.
    pub surge: Option<u64>,
}

impl Options {
    /// A pair of prefill and decode instances that serve this model.
    pub fn new(shape: ModelShape) -> Self {
        Self {
            seed: 0,
            run: Arc::from("default"),
            model: Arc::from("simulated"),
            shape,
            prefill: 1,
            decode: 1,
            colocated: 0,
            requests: None,
            concurrency: 64,
            prompt_tokens: 512,
            completion_tokens: 128,
            update_every: 0,
            faults: Vec::new(),
            fault_rate: 0.01,
            faulty_decode: None,
            surge: None,
        }
    }

    /// The kinds of faults that this fleet and model can have.
    pub fn possible_faults(&self) -> Vec<Fault> {
        Fault::ALL.iter().copied().filter(|&fault| self.unmet(fault).is_none()).collect()
    }

    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        let between = |name, value: u32, least, most| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(OptionsError::Number { name, value, least, most }),
        };
        if (self.prefill == 0) != (self.decode == 0) {
            return Err(OptionsError::HalfAPair { prefill: self.prefill, decode: self.decode });
        }
        if self.prefill == 0 && self.colocated == 0 {
            return Err(OptionsError::NoInstance);
        }
        between("prefill", self.prefill, 0, MAX_INSTANCES)?;
        between("decode", self.decode, 0, MAX_INSTANCES)?;
        between("colocated", self.colocated, 0, MAX_INSTANCES)?;
        between("concurrency", self.concurrency, 1, MAX_CONCURRENCY)?;
        between("prompt tokens", self.prompt_tokens, 1, MAX_TYPICAL)?;
        between("completion tokens", self.completion_tokens, 1, MAX_TYPICAL)?;
        if !(0.0..=1.0).contains(&self.fault_rate) {
            return Err(OptionsError::Rate(self.fault_rate));
        }
        for &fault in &self.faults {
            if let Some(needs) = self.unmet(fault) {
                return Err(OptionsError::Fault { fault, needs });
            }
        }
        Ok(())
    }

    /// What a fault needs and this fleet does not have.
    fn unmet(&self, fault: Fault) -> Option<&'static str> {
        let experts = self.shape.num_experts();
        let narrow = IdWidth::for_experts(experts) == IdWidth::U8;
        let row = self.shape.row();
        match fault {
            _ if self.decode == 0 => Some("a prefill and a decode instance"),
            _ if self.shape.moe_layers().is_empty() => Some("a model with a layer that has experts"),
            Fault::OutOfRange if narrow && experts == 256 => {
                Some("a model with other than 256 experts, whose ids fill a byte")
            }
            Fault::DuplicateExpert | Fault::ZeroRow | Fault::SlotOrder | Fault::Shape | Fault::Collapse
                if row.top_k() < 2 =>
            {
                Some("a model with a top_k of at least 2")
            }
            Fault::Overlap | Fault::Collapse if row.top_k() as u32 == experts => {
                Some("a model with more experts than top_k")
            }
            Fault::DenseLayer if self.shape.moe_layers().len() == row.layers() => Some("a model with a dense layer"),
            _ => None,
        }
    }
}

/// Options that make no fleet.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OptionsError {
    /// Nobody to serve a request.
    #[error("no instance: expected prefill and decode instances, or colocated ones")]
    NoInstance,
    /// One role of a pair alone.
    #[error("{prefill} prefill and {decode} decode instances: expected some of both, or none of either")]
    HalfAPair {
        /// Prefill instances.
        prefill: u32,
        /// Decode instances.
        decode: u32,
    },
    /// A number out of its range.
    #[error("{name} {value}: expected {least} to {most}")]
    Number {
        /// Which.
        name: &'static str,
        /// The number.
        value: u32,
        /// The least that it may be.
        least: u32,
        /// The most that it may be.
        most: u32,
    },
    /// No share.
    #[error("fault rate {0}: expected 0 to 1")]
    Rate(f64),
    /// A fault that cannot be in this fleet.
    #[error("fault {fault}: expected {needs}")]
    Fault {
        /// Which.
        fault: Fault,
        /// What it needs.
        needs: &'static str,
    },
}
