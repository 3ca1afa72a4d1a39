//! What is read: files, and streams such as standard input.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where recorded responses come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A file. Pipes and devices count as streams.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

impl Input {
    /// What the command line means by this argument: `-` is standard input.
    pub fn from_argument(argument: &Path) -> Self {
        if argument == Path::new("-") { Self::Stdin } else { Self::File(argument.to_owned()) }
    }

    /// Its name in messages.
    pub fn name(&self) -> Arc<str> {
        match self {
            Self::File(path) => path.display().to_string().into(),
            Self::Stdin => "stdin".into(),
        }
    }

    /// Bytes in it, where that is known before reading.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::File(path) => path.metadata().ok().filter(|about| about.is_file()).map(|about| about.len()),
            Self::Stdin => None,
        }
    }

    /// Opens it for reading from the beginning to the end.
    pub(super) fn open(&self) -> io::Result<Opened> {
        match self {
            Self::Stdin => Ok(Opened { source: Box::new(io::stdin()), rereadable: false }),
            Self::File(path) => {
                let file = File::open(path)?;
                let about = file.metadata()?;
                if about.is_dir() {
                    return Err(io::Error::new(io::ErrorKind::IsADirectory, "a folder: expected a file of JSON lines"));
                }
                Ok(Opened { source: Box::new(file), rereadable: about.is_file() })
            }
        }
    }
}

/// An input ready to be read.
pub(super) struct Opened {
    pub(super) source: Box<dyn Read + Send>,
    /// Whether a line can be read again later, by its place in the file.
    pub(super) rereadable: bool,
}
