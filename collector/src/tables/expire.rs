//! Retention: taking out whole days.

use super::{
    Tables,
    arrow_file::Columns,
    closed::DAY,
    commit::{Change, Prepared},
    error::{Result, TablesError},
    fixed_tables,
    log::Log,
    requests::Requests,
};

/// What [`Tables::expire`] took out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// The position of its commit.
    pub position: u64,
    /// Requests.
    pub requests: u64,
    /// Files, of all tables.
    pub files: usize,
    /// Their bytes, which a vacuum frees.
    pub bytes: u64,
}

impl Tables {
    /// Takes out, in one commit, what was closed before the day (UTC) that holds `before`, microseconds since 1970 UTC:
    /// whole files of every table. A request's rows, findings, spans and load go together, since all of them are in files
    /// of one day (see [`super::closed`]). Files of builds that did not say when their requests were closed stay. Says
    /// what went; `None` where there was nothing.
    ///
    /// Call it between batches.
    ///
    /// # Errors
    /// [`TablesError::Batch`] where a batch is under way; else as [`Self::commit`].
    pub fn expire(&mut self, before: i64) -> Result<Option<Expired>> {
        if let Some(position) = self.batch_under_way() {
            return Err(TablesError::Batch { position, detail: "under way: nothing can be expired until its commit" });
        }
        self.settle()?;
        let position = self.begun + 1;
        let mut expired = Expired { position, requests: 0, files: 0, bytes: 0 };
        let fixed = fixed_tables().map(|(name, _)| name);
        let routing = self.logs.keys().map(String::as_str).filter(|name| !fixed.contains(name));
        let mut changes = Vec::new();
        for name in routing.chain(fixed) {
            let mut change = Change::default();
            for file in self.logs.get(name).into_iter().flat_map(Log::files) {
                if file.closed.is_some_and(|closed| closed.day() < before.div_euclid(DAY)) {
                    expired.files += 1;
                    expired.bytes += file.bytes;
                    expired.requests += if name == Requests::TABLE { file.rows } else { 0 };
                    change.remove.push(file.remove(true));
                }
            }
            // The fixed tables take part in every commit, the others where they change.
            if fixed.contains(&name) || !change.remove.is_empty() {
                changes.push((name.to_owned(), change));
            }
        }
        if expired.files == 0 {
            return Ok(None);
        }
        self.begun = position;
        self.commit_prepared(Prepared { position, covers: None, changes })?;
        Ok(Some(expired))
    }
}
