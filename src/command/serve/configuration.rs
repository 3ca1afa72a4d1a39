//! What `serve` is told: flags before the environment before `gatescope.toml` before defaults.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use anyhow::Context;
use gatescope_collector::{
    live::{Maintenance, Options},
    tables::KEPT_AFTER_REMOVAL,
};
use gatescope_query::{Limits, postgres};
use gatescope_routing::{ModelShape, Policy, RowShape};

use crate::{
    command::{
        DataFolder,
        import::{PolicyName, model::ModelArguments},
    },
    duration,
    settings::Settings,
};

/// Run the collector: agents stream routing rows in, everything acknowledged is durable, joined and in SQL
///
/// One process, one data folder, nothing else to install. Agents send to the Flight port; recorded answers can be posted
/// to /api/v1/responses. GET /readyz says whether the log is replayed and writable.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gatescope serve
  gatescope serve --data /srv/routing --flight 0.0.0.0:7879 --join-timeout 2m
  curl --data-binary @responses.jsonl http://127.0.0.1:7878/api/v1/responses
  gatescope serve --print-config > gatescope.toml

SIGTERM ends it: what was acknowledged is joined and committed first. Requests that are still open are kept in the log.
Exit codes: 0 stopped as told, 2 could not start or not go on.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    data: DataFolder,
    /// Where HTTP listens [default: 127.0.0.1:7878]
    #[arg(long, value_name = "HOST:PORT", env = "GATESCOPE_HTTP", hide_env_values = true)]
    http: Option<SocketAddr>,
    /// Where Arrow Flight listens [default: 127.0.0.1:7879]
    #[arg(long, value_name = "HOST:PORT", env = "GATESCOPE_FLIGHT", hide_env_values = true)]
    flight: Option<SocketAddr>,
    /// Where the Postgres protocol listens, or `off` [default: 127.0.0.1:7880]
    #[arg(long, value_name = "HOST:PORT", env = "GATESCOPE_POSTGRES", hide_env_values = true)]
    postgres: Option<PostgresAt>,
    /// A file with the password that every Postgres client has to say; without it there is none
    #[arg(long, value_name = "FILE", env = "GATESCOPE_POSTGRES_PASSWORD_FILE", hide_env_values = true)]
    postgres_password_file: Option<PathBuf>,
    /// The Postgres port's certificate, as PEM; with it, connections without TLS are refused there
    #[arg(long, value_name = "FILE", env = "GATESCOPE_TLS_CERT", hide_env_values = true)]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate, as PEM
    #[arg(long, value_name = "FILE", env = "GATESCOPE_TLS_KEY", hide_env_values = true)]
    tls_key: Option<PathBuf>,
    /// Whose row is accepted where prefill and decode both have one [default: prefill]
    #[arg(long, env = "GATESCOPE_POLICY", hide_env_values = true)]
    policy: Option<PolicyName>,
    #[command(flatten)]
    model: ModelArguments,
    /// A request is closed as it is when nothing came for it for so long [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "GATESCOPE_JOIN_TIMEOUT", hide_env_values = true)]
    join_timeout: Option<Duration>,
    /// How often closed requests are committed to the tables [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "GATESCOPE_COMMIT_INTERVAL", hide_env_values = true)]
    commit_interval: Option<Duration>,
    /// Memory for rows of open requests, in MiB; above it the oldest go to a temporary file [default: 256]
    #[arg(long, value_name = "MIB", env = "GATESCOPE_OPEN_MEMORY", hide_env_values = true)]
    open_memory: Option<usize>,
    /// Most disk for the write-ahead log, in MiB; above it nothing more is acknowledged [default: no limit]
    #[arg(long, value_name = "MIB", env = "GATESCOPE_LOG_DISK", hide_env_values = true)]
    log_disk: Option<u64>,
    /// Take out requests that were closed so long ago, by whole days [default: keep all]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "GATESCOPE_RETENTION", hide_env_values = true)]
    retention: Option<Duration>,
    /// Keep files that were replaced for so long, for programs that read the tables themselves [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "GATESCOPE_KEEP_REPLACED", hide_env_values = true)]
    keep_replaced: Option<Duration>,
    /// Memory of all queries' sorts, joins and aggregates, in MiB; what is above goes to temporary files [default: 512]
    #[arg(long, value_name = "MIB", env = "GATESCOPE_QUERY_MEMORY", hide_env_values = true)]
    query_memory: Option<usize>,
    /// How long a query may take [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "GATESCOPE_QUERY_TIME", hide_env_values = true)]
    query_time: Option<Duration>,
    /// Queries at once [default: 8]
    #[arg(long, value_name = "N", env = "GATESCOPE_QUERIES", hide_env_values = true)]
    queries: Option<usize>,
    /// A log file of this size gets no more records
    #[arg(long, value_name = "BYTES", hide = true)]
    log_file_bytes: Option<u64>,
    /// Send metrics and traces to this OTLP collector, as http://HOST:4317
    #[arg(long, value_name = "URL", env = "GATESCOPE_OTLP", hide_env_values = true)]
    otlp: Option<String>,
    /// Go on past damage in the write-ahead log, and report what is lost
    #[arg(long)]
    salvage: bool,
    /// Print the configuration as gatescope.toml and end
    #[arg(long)]
    pub(super) print_config: bool,
}

/// Where the Postgres protocol listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PostgresAt {
    Off,
    At(SocketAddr),
}

impl FromStr for PostgresAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            _ => text.parse().map(Self::At).map_err(|_| "expected HOST:PORT or off".to_owned()),
        }
    }
}

impl fmt::Display for PostgresAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// What holds.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) data: PathBuf,
    pub(super) http: SocketAddr,
    pub(super) flight: SocketAddr,
    postgres: PostgresAt,
    postgres_password_file: Option<PathBuf>,
    tls: Option<postgres::TlsFiles>,
    policy: PolicyName,
    model: Option<Arc<ModelShape>>,
    row_shape: Option<RowShape>,
    join_timeout: Duration,
    commit_interval: Duration,
    open_memory: usize,
    log_disk: Option<u64>,
    log_file_bytes: Option<u64>,
    retention: Option<Duration>,
    keep_replaced: Duration,
    query_memory: usize,
    query_time: Duration,
    queries: usize,
    pub(super) otlp: Option<String>,
    salvage: bool,
    /// As it is printed.
    settings: Settings,
}

impl Configuration {
    pub(super) fn of(arguments: Arguments, settings: &Settings) -> anyhow::Result<Self> {
        let address = |flag: Option<SocketAddr>, key: &str, file: &Option<String>, port: u16| {
            let default = SocketAddr::from(([127, 0, 0, 1], port));
            match (flag, file) {
                (Some(address), _) => Ok(address),
                (None, Some(text)) => {
                    text.parse().with_context(|| format!("gatescope.toml: {key} {text:?}: expected HOST:PORT"))
                }
                (None, None) => Ok(default),
            }
        };
        let time = |flag: Option<Duration>, key: &str, file: &Option<String>, default: u64| match (flag, file) {
            (Some(time), _) => Ok(time),
            (None, Some(text)) => {
                duration::parse(text).map_err(|error| anyhow::anyhow!("gatescope.toml: {key} {error}"))
            }
            (None, None) => Ok(Duration::from_secs(default)),
        };
        let (row_shape, model) = arguments.model.describe(settings)?;
        let http = address(arguments.http, "http", &settings.http, 7878)?;
        let flight = address(arguments.flight, "flight", &settings.flight, 7879)?;
        let postgres = match (arguments.postgres, &settings.postgres) {
            (Some(postgres), _) => postgres,
            (None, Some(text)) => {
                let parsed = text.parse().map_err(anyhow::Error::msg);
                parsed.with_context(|| format!("gatescope.toml: postgres {text:?}"))?
            }
            (None, None) => PostgresAt::At(SocketAddr::from(([127, 0, 0, 1], 7880))),
        };
        let postgres_password_file =
            arguments.postgres_password_file.or_else(|| settings.postgres_password_file.clone());
        let certificate = arguments.tls_cert.or_else(|| settings.tls_cert.clone());
        let key = arguments.tls_key.or_else(|| settings.tls_key.clone());
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(postgres::TlsFiles { certificate, key }),
            (None, None) => None,
            _ => anyhow::bail!("--tls-cert and --tls-key: expected both or neither"),
        };
        let policy = PolicyName::of(arguments.policy, settings)?;
        let join_timeout = time(arguments.join_timeout, "join-timeout", &settings.join_timeout, 600)?;
        let commit_interval = time(arguments.commit_interval, "commit-interval", &settings.commit_interval, 10)?;
        let open_memory = arguments.open_memory.or(settings.open_memory).unwrap_or(256);
        let retention = match (arguments.retention, &settings.retention) {
            (None, None) => None,
            (flag, file) => Some(time(flag, "retention", file, 0)?),
        };
        let keep_replaced = time(arguments.keep_replaced, "keep-replaced", &settings.keep_replaced, 86_400)?;
        if keep_replaced > KEPT_AFTER_REMOVAL {
            anyhow::bail!(
                "--keep-replaced: expected a week (7d) at most: the tables' logs do not name files for longer"
            );
        }
        let query_memory = arguments.query_memory.or(settings.query_memory).unwrap_or(512);
        let query_time = time(arguments.query_time, "query-time", &settings.query_time, 60)?;
        let queries = arguments.queries.or(settings.queries).unwrap_or(8).max(1);
        let log_disk = arguments.log_disk.or(settings.log_disk);
        let otlp = arguments.otlp.or_else(|| settings.otlp.clone());
        let data = arguments.data.path(settings);
        let settings = Settings {
            data: Some(data.clone()),
            http: Some(http.to_string()),
            flight: Some(flight.to_string()),
            postgres: Some(postgres.to_string()),
            postgres_password_file: postgres_password_file.clone(),
            tls_cert: tls.as_ref().map(|files| files.certificate.clone()),
            tls_key: tls.as_ref().map(|files| files.key.clone()),
            policy: Some(Policy::from(policy).name().to_owned()),
            join_timeout: Some(duration::text(join_timeout)),
            commit_interval: Some(duration::text(commit_interval)),
            open_memory: Some(open_memory),
            retention: retention.map(duration::text),
            keep_replaced: Some(duration::text(keep_replaced)),
            query_memory: Some(query_memory),
            query_time: Some(duration::text(query_time)),
            queries: Some(queries),
            log_disk,
            otlp: otlp.clone(),
            ..settings.clone()
        };
        Ok(Self {
            data,
            http,
            flight,
            postgres,
            postgres_password_file,
            tls,
            policy,
            model: model.map(Arc::new),
            row_shape,
            join_timeout,
            commit_interval,
            open_memory,
            log_disk,
            log_file_bytes: arguments.log_file_bytes,
            retention,
            keep_replaced,
            query_memory,
            query_time,
            queries,
            otlp,
            salvage: arguments.salvage,
            settings,
        })
    }

    /// As `gatescope.toml` would say it.
    pub(super) fn toml(&self) -> anyhow::Result<String> {
        toml::to_string(&self.settings).context("printing the configuration")
    }

    /// What queries may use.
    pub(super) fn query_options(&self) -> gatescope_query::Options {
        let memory_bytes = self.query_memory.saturating_mul(1 << 20);
        gatescope_query::Options { memory_bytes, ..gatescope_query::Options::default() }
    }

    /// How many queries there may be, and for how long.
    pub(super) fn query_limits(&self) -> Limits {
        Limits { time: self.query_time, queries: self.queries, ..Limits::default() }
    }

    /// Where the Postgres protocol listens, if it does.
    pub(super) fn postgres(&self) -> Option<SocketAddr> {
        match self.postgres {
            PostgresAt::Off => None,
            PostgresAt::At(address) => Some(address),
        }
    }

    /// How.
    pub(super) fn postgres_options(&self) -> anyhow::Result<postgres::Options> {
        let password = self.postgres_password_file.as_ref().map(|file| {
            let password = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            let password = password.trim_end_matches(['\r', '\n']).to_owned();
            anyhow::ensure!(!password.is_empty(), "{}: it is empty: expected a password", file.display());
            Ok(password)
        });
        let password = password.transpose()?;
        Ok(postgres::Options { password, tls: self.tls.clone(), ..postgres::Options::default() })
    }

    /// What the collector is told.
    pub(super) fn collector(&self) -> Options {
        let mut options = Options {
            policy: self.policy.into(),
            model: self.model.clone(),
            row_shape: self.row_shape,
            join_timeout: self.join_timeout,
            commit_interval: self.commit_interval,
            open_bytes: self.open_memory.saturating_mul(1 << 20),
            maintenance: Maintenance { retention: self.retention, kept: self.keep_replaced, ..Maintenance::default() },
            ..Options::default()
        };
        options.log.salvage = self.salvage;
        options.log.roll_bytes = self.log_file_bytes.unwrap_or(options.log.roll_bytes);
        options.log.disk_bytes = self.log_disk.map(|mebibytes| mebibytes.saturating_mul(1 << 20));
        options
    }
}
