//! `gatescope preflight`: whether an engine's routing can be captured, from its configuration.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use gatescope_preflight::{Configuration, Engine, Level, Question, Report, Version, examine};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, Uri, body::Bytes};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;

use super::role::RoleName;

/// Longest to wait for one answer of a server.
const PATIENCE: Duration = Duration::from_secs(15);
/// Most bytes of an answer: vLLM's configuration has some ten thousand.
const MOST_BYTES: usize = 8 << 20;

/// Say whether an engine's routing can be captured, and what to change
///
/// Reads a command line, a configuration file or what a running server says of itself, and holds it to the rules of the engine's
/// version: vLLM 0.11 to 0.33, SGLang 0.5. Nothing is started or changed. Variables of the engine's environment count where they are
/// written before the command (NAME=value).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gatescope preflight --role prefill --engine-version 0.31.0 -- vllm serve MODEL --enable-return-routed-experts -tp 8
  gatescope preflight --config decode.yaml --engine-version 0.32.0
  gatescope preflight --server http://127.0.0.1:8000

Exit codes: 0 works as it is, 1 works with the plugin or after a change, 2 cannot, or the input is bad.")]
pub(crate) struct Arguments {
    /// What the engine is for [default: what its KV connector says]
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Option<RoleName>,
    /// Version of the engine [default: the server's own, else the newest that is known]
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<Version>,
    /// The Gatescope plugin is installed with the engine, and GATESCOPE_COLLECTOR is set there
    #[arg(long)]
    plugin: bool,
    /// Read a configuration file (YAML or JSON), as `vllm serve --config` does
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    config: Option<PathBuf>,
    /// Ask a running server
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    server: Option<Uri>,
    /// How the verdict is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The engine's command line
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["config", "server"])]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut question =
        Question { version: arguments.engine_version, role: arguments.role.map(Into::into), plugin: arguments.plugin };
    let configuration = match &arguments.server {
        Some(server) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let (configuration, version) = runtime.context("starting threads")?.block_on(ask(server))?;
            question.version = question.version.or(version);
            configuration
        }
        None => written(&arguments)?,
    };
    let report = examine(&configuration, &question);
    print(&report, arguments.format)?;
    Ok(match report.level {
        Level::Works => ExitCode::SUCCESS,
        Level::Plugin | Level::Change => ExitCode::from(1),
        Level::Cannot => ExitCode::from(2),
    })
}

/// The command line, the file, or both: the command line goes first.
fn written(arguments: &Arguments) -> anyhow::Result<Configuration> {
    let read = |engine, path: &Path| {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Configuration::from_file(engine, &text).with_context(|| path.display().to_string())
    };
    if arguments.command.is_empty() {
        let path = arguments.config.as_deref().context("a command line or --config is needed")?;
        return read(Engine::Vllm, path);
    }
    let line = Configuration::from_arguments(&arguments.command)?;
    let engine = line.engine();
    match (&arguments.config, line.config_file().map(PathBuf::from)) {
        (Some(path), _) => Ok(line.or_from(read(engine, path)?)),
        // A file that lies where the engine runs, not here, is named in the report as not looked at.
        (None, Some(path)) if path.exists() => Ok(line.or_from(read(engine, &path)?)),
        _ => Ok(line),
    }
}

fn print(report: &Report, format: Format) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let printed = match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string(report)?),
        Format::Text => write!(out, "{report}"),
    };
    match printed.and_then(|()| out.flush()) {
        // Who closed the pipe does not want the rest.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// The configuration and version of a running server.
async fn ask(server: &Uri) -> anyhow::Result<(Configuration, Option<Version>)> {
    if server.scheme_str() != Some("http") || server.authority().is_none() {
        bail!("--server {server}: expected http://HOST:PORT");
    }
    let at = |path: &str| format!("{}{path}", server.to_string().trim_end_matches('/'));
    let models = get(&at("/v1/models")).await?;
    let model = models.as_ref().and_then(|models| models.pointer("/data/0/id")?.as_str());
    let version = |answer: &Value| answer.get("version").and_then(Value::as_str).and_then(|text| text.parse().ok());
    if let Some(answer) = get(&at("/version")).await? {
        let info = get(&at("/server_info?config_format=json")).await?;
        return Ok((Configuration::from_server(Engine::Vllm, model, info.as_ref())?, version(&answer)));
    }
    for path in ["/server_info", "/get_server_info"] {
        if let Some(info) = get(&at(path)).await? {
            return Ok((Configuration::from_server(Engine::Sglang, model, Some(&info))?, version(&info)));
        }
    }
    bail!("{server}: neither a vLLM server (/version) nor an SGLang server (/server_info) answers there")
}

/// The JSON at an address; nothing where the server has no such page.
async fn get(uri: &str) -> anyhow::Result<Option<Value>> {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::get(uri).body(Empty::new()).with_context(|| uri.to_owned())?;
    let body = async {
        let answer = client.request(request).await.with_context(|| uri.to_owned())?;
        if answer.status() != StatusCode::OK {
            return Ok(None);
        }
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        body.map(|body| Some(body.to_bytes())).map_err(|error| anyhow::anyhow!("{uri}: {error}"))
    };
    let body =
        tokio::time::timeout(PATIENCE, body).await.with_context(|| format!("{uri}: no answer in {PATIENCE:?}"))??;
    Ok(body.and_then(|body| serde_json::from_slice(&body).ok()))
}
