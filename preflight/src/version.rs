//! Versions of engines.

use serde::Serialize;

/// A released version: `0.31.0`. What follows the numbers (`rc1`, `.dev3+g12ab`) is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u16,
    /// Second number, which engines count up with each release.
    pub minor: u16,
    /// Third number.
    pub patch: u16,
}

/// Not a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version: expected something like 0.31.0")]
pub struct VersionError(String);

impl Version {
    /// From its numbers.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }
}

impl std::str::FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let wrong = || VersionError(text.chars().take(40).collect());
        let mut numbers = text.trim().trim_start_matches('v').splitn(3, '.').map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u16>().map_err(|_| wrong())
        });
        let major = numbers.next().ok_or_else(wrong)??;
        let minor = numbers.next().ok_or_else(wrong)??;
        let patch = numbers.next().transpose()?.unwrap_or(0);
        Ok(Self { major, minor, patch })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_engines_write_them() {
        for (text, version) in [
            ("0.31.0", Version::new(0, 31, 0)),
            ("v0.9", Version::new(0, 9, 0)),
            ("0.32.0rc1", Version::new(0, 32, 0)),
            ("0.31.1.dev3+gabc.d2026", Version::new(0, 31, 1)),
            ("0.5.10.post1", Version::new(0, 5, 10)),
        ] {
            assert_eq!(text.parse(), Ok(version), "{text}");
        }
        for text in ["", "31", "latest", "0.x", "-1.2", "0.99999999.1"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
        assert!(Version::new(0, 9, 0) < Version::new(0, 31, 0));
    }
}
