//! Runs the program on a data folder of its own.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// A data folder and a working folder, which go with the value.
pub(crate) struct Gatescope {
    folder: TempDir,
}

/// What a run of the program gave.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Gatescope {
    pub(crate) fn new() -> Self {
        Self { folder: TempDir::new().unwrap() }
    }

    /// The working folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gatescope"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GATESCOPE_")) {
            command.env_remove(name);
        }
        command.args(arguments).current_dir(self.folder());
        command
    }

    /// Runs the program with these arguments and this standard input.
    pub(crate) fn run(&self, arguments: &[&str], stdin: impl Read) -> Ran {
        run(&mut self.command(arguments), stdin)
    }

    /// `gatescope import` of these arguments.
    pub(crate) fn import(&self, arguments: &[&str]) -> Import {
        self.import_from(arguments, std::io::empty())
    }

    /// `gatescope import` of these arguments, with standard input.
    pub(crate) fn import_from(&self, arguments: &[&str], stdin: impl Read) -> Import {
        let ran = self.run(&[&["import", "--format", "json"], arguments].concat(), stdin);
        let summary = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("no summary: {ran:?}"));
        Import { ran, summary }
    }

    /// The first column of the rows that a query gives.
    pub(crate) fn sql(&self, query: &str) -> Vec<Value> {
        let ran = self.run(&["sql", "--format", "json", query], std::io::empty());
        assert_eq!(ran.code, 0, "{query}: {}", ran.stderr);
        let rows: Vec<serde_json::Map<String, Value>> = serde_json::from_str(&ran.stdout).unwrap();
        rows.into_iter().map(|row| row.into_iter().next().map_or(Value::Null, |(_, value)| value)).collect()
    }

    /// The number that a query gives.
    pub(crate) fn count(&self, query: &str) -> u64 {
        self.sql(query)[0].as_u64().unwrap_or_else(|| panic!("{query}: no number"))
    }

    /// Everything stored that must not depend on how it came: requests and every id, in order.
    pub(crate) fn contents(&self) -> [Vec<Value>; 2] {
        let requests = "SELECT concat_ws(' ', run, request_id, choice, status, rows, expected_rows, findings, \
                        prompt_tokens, completion_tokens, first_forward, overlap_rows) AS request FROM requests ORDER BY 1";
        let ids = "SELECT concat_ws(' ', run, request_id, choice, position, phase, role, layer, slot, expert) AS id \
                   FROM experts ORDER BY 1";
        [self.sql(requests), self.sql(ids)]
    }

    /// Writes a file into the working folder.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        fs::write(self.folder().join(name), contents).unwrap();
        name.to_owned()
    }
}

/// Runs a command with this standard input.
pub(crate) fn run(command: &mut Command, mut stdin: impl Read) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut pipe = child.stdin.take().unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let readers = [std::thread::spawn(move || read(&mut stdout)), std::thread::spawn(move || read(&mut stderr))];
    // The program may end before it has read everything.
    let _ = std::io::copy(&mut stdin, &mut pipe);
    let _ = pipe.flush();
    drop(pipe);
    let code = child.wait().unwrap().code().unwrap_or(-1);
    let [stdout, stderr] = readers.map(|reader| reader.join().unwrap());
    Ran { code, stdout, stderr }
}

fn read(from: &mut impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}

/// What an import said.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) ran: Ran,
    pub(crate) summary: Value,
}

impl Import {
    /// A number of the summary.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.summary[name].as_u64().unwrap_or_else(|| panic!("no {name}: {}", self.summary))
    }

    /// Several of them.
    pub(crate) fn numbers<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.number(name))
    }

    /// How many findings of this check.
    pub(crate) fn findings(&self, check: &str) -> u64 {
        let findings = self.summary["findings"].as_array().unwrap();
        findings
            .iter()
            .find(|finding| finding["check"] == check)
            .map_or(0, |finding| finding["count"].as_u64().unwrap())
    }

    /// The lines on stderr.
    pub(crate) fn messages(&self) -> Vec<&str> {
        self.ran.stderr.lines().collect()
    }
}

/// A recording of vLLM 0.31.0.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vllm-0.31").join(name)
}

/// Its path as an argument.
pub(crate) fn fixture_path(name: &str) -> String {
    fixture(name).to_str().unwrap().to_owned()
}

/// Its lines.
pub(crate) fn fixture_lines(name: &str) -> Vec<String> {
    fs::read_to_string(fixture(name)).unwrap().lines().map(str::to_owned).collect()
}

/// The lines of one role.
pub(crate) fn lines_of(lines: &[String], role: &str) -> Vec<String> {
    let of_role = |line: &&String| serde_json::from_str::<Value>(line).unwrap()["role"] == role;
    lines.iter().filter(of_role).cloned().collect()
}
