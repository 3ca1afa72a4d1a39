//! Lines put aside: an unfinished request that memory has no room for is kept as places in the input, and read again
//! when another answer to it comes or the input ends.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::{error::ImportError, input::Input};

/// Where a line can be read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineAt {
    /// Its number in its input, from 1.
    pub(super) number: u64,
    offset: u64,
    length: u32,
    /// Index of its input, and in the highest bit whether it is in the temporary file.
    input: u32,
}

const KEPT: u32 = 1 << 31;

impl LineAt {
    /// Index of its input.
    pub(super) fn input(&self) -> usize {
        (self.input & !KEPT) as usize
    }
}

/// The line that is being joined.
#[derive(Debug, Clone)]
pub(super) struct CurrentLine {
    pub(super) input: usize,
    pub(super) number: u64,
    pub(super) offset: u64,
    /// Whether its input is a file, that can be read again.
    pub(super) rereadable: bool,
    pub(super) bytes: Bytes,
}

/// Reads lines again: out of their files, or for streams out of a temporary file that keeps them meanwhile.
pub(super) struct Aside {
    inputs: Arc<[Input]>,
    folder: PathBuf,
    kept: Option<File>,
    kept_bytes: u64,
    /// The file that was read last.
    open: Option<(usize, File)>,
}

impl Aside {
    /// `folder` is where the temporary file goes, should a stream need it.
    pub(super) fn new(inputs: Arc<[Input]>, folder: &Path) -> Self {
        Self { inputs, folder: folder.to_owned(), kept: None, kept_bytes: 0, open: None }
    }

    /// The place of a line; a stream's line is written to the temporary file.
    pub(super) fn place(&mut self, line: &CurrentLine) -> Result<LineAt, ImportError> {
        // Lines above 4 GiB would need --max-line above it; they are then read short and refused when read again.
        let length = u32::try_from(line.bytes.len()).unwrap_or(u32::MAX);
        let input = line.input as u32;
        if line.rereadable {
            return Ok(LineAt { number: line.number, offset: line.offset, length, input });
        }
        let kept = self.keep(&line.bytes);
        let offset = kept.map_err(|source| ImportError::Aside { folder: self.folder.clone(), source })?;
        Ok(LineAt { number: line.number, offset, length, input: input | KEPT })
    }

    /// Appends to the temporary file; says where.
    fn keep(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let file = match &mut self.kept {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(&self.folder)?),
        };
        let offset = self.kept_bytes;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)?;
        self.kept_bytes += bytes.len() as u64;
        Ok(offset)
    }

    /// The bytes of a line.
    pub(super) fn read(&mut self, line: &LineAt) -> io::Result<Bytes> {
        let file = match line.input & KEPT {
            0 => self.input(line.input())?,
            _ => self.kept.as_mut().ok_or(io::ErrorKind::NotFound)?,
        };
        file.seek(SeekFrom::Start(line.offset))?;
        let mut bytes = vec![0; line.length as usize];
        file.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }

    fn input(&mut self, index: usize) -> io::Result<&mut File> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != index) {
            let Some(Input::File(path)) = self.inputs.get(index) else {
                return Err(io::ErrorKind::NotFound.into());
            };
            self.open = Some((index, File::open(path)?));
        }
        self.open.as_mut().map(|(_, file)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
impl LineAt {
    /// A place that is told apart by its number.
    pub(super) fn numbered(number: u64) -> Self {
        Self { number, offset: 0, length: 0, input: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rereadable: bool, offset: u64, bytes: &'static [u8]) -> CurrentLine {
        CurrentLine { input: 0, number: 1, offset, rereadable, bytes: Bytes::from_static(bytes) }
    }

    #[test]
    fn a_line_is_read_again_where_it_was() {
        // given
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input");
        std::fs::write(&path, "first\nsecond\n").unwrap();
        let mut aside = Aside::new([Input::File(path.clone())].into(), folder.path());

        // when
        let second = aside.place(&line(true, 6, b"second")).unwrap();
        let first = aside.place(&line(true, 0, b"first")).unwrap();

        // then
        assert_eq!(&aside.read(&second).unwrap()[..], b"second");
        assert_eq!(&aside.read(&first).unwrap()[..], b"first");
        std::fs::write(&path, "first").unwrap();
        assert!(aside.read(&second).is_err());
    }

    #[test]
    fn a_line_of_a_stream_is_kept_on_disk_as_long_as_it_may_be_needed() {
        // given
        let folder = tempfile::tempdir().unwrap();
        let mut aside = Aside::new([Input::Stdin].into(), folder.path());

        // when
        let places = [&b"one"[..], b"", b"three"].map(|bytes| aside.place(&line(false, 0, bytes)).unwrap());

        // then
        let read = places.map(|place| aside.read(&place).unwrap());
        assert_eq!(read.map(|bytes| bytes.to_vec()), [b"one".to_vec(), b"".to_vec(), b"three".to_vec()]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
