//! Gives back what was durable and is not committed.

use std::{collections::VecDeque, path::PathBuf, sync::Arc};

use bytes::Bytes;

use super::{
    damage::{Lost, Tolerance},
    error::LogError,
    folder::file_path,
    reader::{Next, Opened, Reader, Walk, header_of},
    recovery::{Cut, Recovered},
    storage::Storage,
};

/// A record and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its position.
    pub position: u64,
    /// Its bytes.
    pub bytes: Bytes,
}

/// Iterates, by position, over the records above the committed position that were there when the log was opened.
///
/// Holds one record and 1 MiB at a time. After an error it ends: nothing after damage is given unless salvage was asked
/// for, and then [`Replay::lost`] says what is missing in between.
#[derive(Debug)]
pub struct Replay {
    storage: Arc<dyn Storage>,
    folder: PathBuf,
    tolerance: Tolerance,
    /// First positions of the files to read, each with that of the next file.
    files: VecDeque<(u64, u64)>,
    walk: Option<Walk>,
    /// The next position to come.
    expected: u64,
    cut: Option<Cut>,
    lost: Vec<Lost>,
}

impl Replay {
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        folder: PathBuf,
        tolerance: Tolerance,
        recovered: &mut Recovered,
    ) -> Self {
        let expected = tolerance.committed + 1;
        let nexts = recovered.files.iter().skip(1).copied().chain([recovered.last + 1]);
        // Files whose records are all committed are not even opened.
        let files = recovered.files.iter().copied().zip(nexts).filter(|(_, next)| *next > expected).collect();
        let cut = recovered.cut.take();
        let lost = recovered.set_aside.take().into_iter().collect();
        Self { storage, folder, tolerance, files, walk: None, expected, cut, lost }
    }

    /// What a crash left half-written at the end of the log and opening has cut off.
    pub fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// What salvage has gone past so far; complete once the iterator has ended.
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    fn advance(&mut self) -> Result<Option<Record>, LogError> {
        loop {
            let Some(walk) = &mut self.walk else {
                let Some((first, next)) = self.files.pop_front() else { return Ok(None) };
                self.enter(first, next)?;
                continue;
            };
            match walk.next()? {
                Next::Record(header) if header.position > self.tolerance.committed => {
                    return Ok(Some(Record { position: header.position, bytes: walk.payload(&header)? }));
                }
                Next::Record(_) => {}
                Next::Damage(damage) => {
                    let lost = self.tolerance.judge(damage.lost, damage.expected, damage.found)?;
                    self.lost.extend(lost);
                }
                Next::End => {
                    self.expected = walk.expected;
                    self.walk = None;
                }
            }
        }
    }

    /// Opens the file that begins with `first`; the one after it begins with `next`.
    fn enter(&mut self, first: u64, next: u64) -> Result<(), LogError> {
        if first > self.expected {
            let path = file_path(&self.folder, self.expected);
            let lost = Lost { path, from: 0, to: 0, first: self.expected, last: Some(first - 1) };
            let expected = format!("a file that holds record {}", self.expected);
            self.lost.extend(self.tolerance.judge(
                lost,
                expected,
                format_args!("the next file begins with record {first}"),
            )?);
        }
        let path = file_path(&self.folder, first);
        match Reader::open(self.storage.as_ref(), path.clone(), first)? {
            Opened::Whole(reader) => self.walk = Some(Walk::new(reader, Some(next))),
            Opened::Unreadable { length, found } => {
                let lost = Lost { path, from: 0, to: length, first, last: Some(next - 1) };
                self.lost.extend(self.tolerance.judge(lost, header_of(first), found)?);
            }
        }
        self.expected = next;
        Ok(())
    }
}

impl Iterator for Replay {
    type Item = Result<Record, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance().transpose();
        if matches!(next, Some(Err(_))) {
            self.walk = None;
            self.files.clear();
        }
        next
    }
}
