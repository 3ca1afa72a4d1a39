//! What must be known beside the tables to replay the log exactly: `DIR/state/<log position>.json`, written and synced
//! before the commit that covers that position.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use gatescope_routing::{LayerSet, ModelShape, RowShape};
use gatescope_wire::ModelSeen;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{error::LiveError, families::Name};

/// What was true when all records up to a position had been joined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// The last record that the commit covers.
    pub(super) position: u64,
    /// The first record that is still needed: it tells of a request that is open.
    pub(super) replay_from: u64,
    /// Run and request id of every open request: of the records up to the position, what tells of others is stored.
    pub(super) open: Vec<Name>,
    /// Other names of requests that were closed lately.
    #[serde(default)]
    pub(super) aliases: Vec<(Name, Arc<str>)>,
    /// The last message of every agent.
    pub(super) agents: Vec<AgentSeen>,
    /// What instances said of their models.
    pub(super) models: Vec<ModelSaid>,
}

/// How far an agent has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentSeen {
    pub(crate) agent: Arc<str>,
    pub(crate) boot: Uuid,
    pub(crate) seq: u64,
}

/// [`ModelSeen`], in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ModelSaid {
    run: Arc<str>,
    instance: Arc<str>,
    at: i64,
    model: Arc<str>,
    layers: u64,
    top_k: u64,
    experts: u32,
    moe_layers: Vec<usize>,
    repeating_layers: Vec<usize>,
}

impl From<&ModelSeen> for ModelSaid {
    fn from(seen: &ModelSeen) -> Self {
        let shape = &seen.shape;
        Self {
            run: Arc::clone(&seen.run),
            instance: Arc::clone(&seen.instance),
            at: seen.at,
            model: Arc::clone(&seen.model),
            layers: shape.row().layers() as u64,
            top_k: shape.row().top_k() as u64,
            experts: shape.num_experts(),
            moe_layers: shape.moe_layers().iter().collect(),
            repeating_layers: shape.repeating_layers().iter().collect(),
        }
    }
}

impl ModelSaid {
    /// `None` where it is no model that can be.
    pub(super) fn seen(&self) -> Option<ModelSeen> {
        let row = RowShape::new(self.layers, self.top_k).ok()?;
        let moe: LayerSet = self.moe_layers.iter().copied().collect();
        let repeating: LayerSet = self.repeating_layers.iter().copied().collect();
        let shape = ModelShape::new(row, self.experts.into(), moe).ok()?.with_repeating_layers(repeating);
        let (run, instance, model) = (Arc::clone(&self.run), Arc::clone(&self.instance), Arc::clone(&self.model));
        Some(ModelSeen { run, instance, at: self.at, model, shape })
    }
}

/// The folder of states.
#[derive(Debug, Clone)]
pub(super) struct States {
    folder: PathBuf,
}

impl States {
    pub(super) fn open(data: &Path) -> Result<Self, LiveError> {
        let folder = data.join("state");
        std::fs::create_dir_all(&folder).map_err(LiveError::file(&folder, "create the folder"))?;
        Ok(Self { folder })
    }

    /// The state of a position; `None` where there is none.
    pub(super) fn read(&self, position: u64) -> Result<Option<State>, LiveError> {
        let path = self.path(position);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LiveError::file(&path, "read")(error)),
        };
        let state = serde_json::from_slice(&text);
        state.map(Some).map_err(|error| LiveError::State { path, detail: error.to_string() })
    }

    /// Writes a state, durably.
    pub(super) fn write(&self, state: &State) -> Result<(), LiveError> {
        let path = self.path(state.position);
        let unfinished = path.with_extension("json.tmp");
        // Serialising text and numbers into memory has no way to fail.
        let text = serde_json::to_vec(state).unwrap_or_default();
        let write = || {
            let mut file = File::create(&unfinished)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&unfinished, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(LiveError::file(&path, "write"))
    }

    /// Removes all other states.
    pub(super) fn keep_only(&self, position: u64) -> Result<(), LiveError> {
        let kept = self.path(position);
        let folder = &self.folder;
        for entry in std::fs::read_dir(folder).map_err(LiveError::file(folder, "list"))? {
            let path = entry.map_err(LiveError::file(folder, "list"))?.path();
            if path != kept {
                std::fs::remove_file(&path).map_err(LiveError::file(&path, "remove"))?;
            }
        }
        Ok(())
    }

    pub(super) fn path(&self, position: u64) -> PathBuf {
        self.folder.join(format!("{position:020}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(position: u64) -> State {
        let row = RowShape::new(4, 2).unwrap();
        let shape = ModelShape::new(row, 16, (1..4).collect()).unwrap();
        let model = ModelSeen { run: "r".into(), instance: "p0".into(), at: 7, model: "m".into(), shape };
        State {
            position,
            replay_from: 3,
            open: vec![("r".into(), "a".into())],
            aliases: vec![(("r".into(), "p".into()), "d".into())],
            agents: vec![AgentSeen { agent: "p0".into(), boot: Uuid::from_u128(9), seq: 12 }],
            models: vec![ModelSaid::from(&model)],
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written_and_others_go() {
        // given
        let folder = tempfile::tempdir().unwrap();
        let states = States::open(folder.path()).unwrap();
        states.write(&state(5)).unwrap();

        // when
        states.write(&state(9)).unwrap();
        states.keep_only(9).unwrap();

        // then
        assert_eq!(states.read(9).unwrap(), Some(state(9)));
        assert_eq!(states.read(5).unwrap(), None);
        assert_eq!(state(9).models[0].seen().map(|seen| ModelSaid::from(&seen)), Some(state(9).models[0].clone()));
    }
}
