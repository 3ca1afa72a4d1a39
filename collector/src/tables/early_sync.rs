//! Syncing a file while it is still being written, so that the sync at its end finds little left to do.

use std::{
    fs::File,
    io,
    thread::{self, JoinHandle},
};

/// Syncs a file beside its writing, one sync at a time.
pub(super) struct EarlySync {
    file: File,
    running: Option<JoinHandle<io::Result<()>>>,
}

impl EarlySync {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        Ok(Self { file: file.try_clone()?, running: None })
    }

    /// Begins to sync what is written, unless a sync is under way.
    ///
    /// # Errors
    /// The one before failed. The system reports a failed write-back once, so whoever syncs next would not hear of it.
    pub(super) fn start(&mut self) -> io::Result<()> {
        if self.running.as_ref().is_some_and(|running| !running.is_finished()) {
            return Ok(());
        }
        self.wait()?;
        let file = self.file.try_clone()?;
        let thread = thread::Builder::new().name("gatescope-sync".into());
        self.running = Some(thread.spawn(move || file.sync_data())?);
        Ok(())
    }

    /// Waits for the sync under way.
    ///
    /// # Errors
    /// It failed.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        match self.running.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(synced)) => synced,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_failed_sync_is_told_to_whoever_syncs_next() {
        let pipe = || std::io::pipe().map(|(_, writer)| File::from(std::os::fd::OwnedFd::from(writer)));
        // A pipe cannot be synced.
        let mut early = EarlySync::of(&pipe().unwrap()).unwrap();
        early.start().unwrap();
        assert_eq!(early.wait().unwrap_err().kind(), io::ErrorKind::InvalidInput);

        early.start().unwrap();
        while !early.running.as_ref().unwrap().is_finished() {
            thread::yield_now();
        }
        assert!(early.start().is_err());
    }

    #[test]
    fn a_file_is_synced_beside_its_writing() {
        let mut file = tempfile::tempfile().unwrap();
        let mut early = EarlySync::of(&file).unwrap();
        for _ in 0..3 {
            file.write_all(b"rows").unwrap();
            early.start().unwrap();
        }
        early.wait().unwrap();
    }
}
