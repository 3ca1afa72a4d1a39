//! Statements about the session: settings, and transactions that mean nothing.

use std::{sync::Arc, time::Duration};

use datafusion::sql::sqlparser::ast::{Expr, Set, Statement};
use datafusion_postgres::pgwire::{
    api::{
        ClientInfo, Type,
        results::{DataRowEncoder, FieldFormat, FieldInfo, QueryResponse, Response, Tag},
    },
    error::{PgWireError, PgWireResult},
    messages::{PgWireBackendMessage, response::TransactionStatus, startup::ParameterStatus},
};
use futures::{Sink, SinkExt, stream};

use super::refusal;

/// The version that is said: tools read from it what they may ask.
pub(super) const VERSION: &str = "16.6";

/// What may be set, as drivers and tools do, and how it is written where the client is told.
const SETTABLE: [(&str, Option<&str>); 20] = [
    ("application_name", Some("application_name")),
    ("bytea_output", None),
    ("client_encoding", Some("client_encoding")),
    ("client_min_messages", None),
    ("datestyle", Some("DateStyle")),
    ("default_transaction_isolation", None),
    ("default_transaction_read_only", None),
    ("enable_seqscan", None),
    ("extra_float_digits", None),
    ("idle_in_transaction_session_timeout", None),
    ("intervalstyle", Some("IntervalStyle")),
    ("jit", None),
    ("lock_timeout", None),
    ("row_security", None),
    ("search_path", None),
    ("standard_conforming_strings", Some("standard_conforming_strings")),
    ("statement_timeout", None),
    ("timezone", Some("TimeZone")),
    ("transaction_isolation", None),
    ("transaction_read_only", None),
];

/// What is shown where nothing else was set.
const SHOWN: [(&str, &str); 19] = [
    ("application_name", ""),
    ("bytea_output", "hex"),
    ("client_encoding", "UTF8"),
    ("datestyle", "ISO, YMD"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "on"),
    ("extra_float_digits", "1"),
    ("integer_datetimes", "on"),
    ("intervalstyle", "postgres"),
    ("is_superuser", "off"),
    ("max_identifier_length", "63"),
    ("search_path", "public"),
    ("server_encoding", "UTF8"),
    ("server_version", VERSION),
    ("server_version_num", "160006"),
    ("standard_conforming_strings", "on"),
    ("statement_timeout", "0"),
    ("timezone", "UTC"),
    ("transaction_isolation", "read committed"),
];

/// What a setting is where the client has set nothing.
pub(super) fn preset(name: &str) -> Option<&'static str> {
    SHOWN.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

/// How long a statement may take, as far as the client has said.
pub(super) fn statement_timeout(client: &impl ClientInfo) -> Option<Duration> {
    client.metadata().get("statement_timeout").and_then(|value| milliseconds(value)).filter(|time| !time.is_zero())
}

fn milliseconds(value: &str) -> Option<Duration> {
    let digits = value.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.trim().parse().ok()?;
    let unit = match value[digits.len()..].trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.saturating_mul(unit)))
}

/// The columns of the answer.
pub(super) fn columns(statement: &Statement) -> Vec<FieldInfo> {
    match shown(statement) {
        Some(name) => vec![FieldInfo::new(name, None, None, Type::TEXT, FieldFormat::Text)],
        None => Vec::new(),
    }
}

/// Which setting is asked for.
fn shown(statement: &Statement) -> Option<String> {
    let Statement::ShowVariable { variable } = statement else { return None };
    let words: Vec<String> = variable.iter().map(|word| word.value.to_lowercase()).collect();
    Some(match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["time", "zone"] => "timezone".to_owned(),
        ["transaction", "isolation", "level"] => "transaction_isolation".to_owned(),
        words => words.join("."),
    })
}

/// Answers a statement that needs no tables.
pub(super) async fn answer<C>(client: &mut C, statement: &Statement) -> PgWireResult<Response>
where
    C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    match statement {
        Statement::StartTransaction { .. } => Ok(match client.transaction_status() {
            TransactionStatus::Idle => Response::TransactionStart(Tag::new("BEGIN")),
            _ => Response::Execution(Tag::new("BEGIN")),
        }),
        Statement::Commit { .. } => Ok(Response::TransactionEnd(Tag::new(match client.transaction_status() {
            TransactionStatus::Error => "ROLLBACK",
            _ => "COMMIT",
        }))),
        Statement::Rollback { savepoint: None, .. } => Ok(Response::TransactionEnd(Tag::new("ROLLBACK"))),
        // Back to a savepoint means to go on in the transaction.
        Statement::Rollback { .. } => Ok(match client.transaction_status() {
            TransactionStatus::Error => Response::TransactionStart(Tag::new("ROLLBACK")),
            _ => Response::Execution(Tag::new("ROLLBACK")),
        }),
        Statement::Savepoint { .. } => Ok(Response::Execution(Tag::new("SAVEPOINT"))),
        Statement::ReleaseSavepoint { .. } => Ok(Response::Execution(Tag::new("RELEASE"))),
        Statement::Discard { .. } => {
            forget(client);
            Ok(Response::Execution(Tag::new("DISCARD ALL")))
        }
        Statement::Reset(_) => {
            forget(client);
            Ok(Response::Execution(Tag::new("RESET")))
        }
        Statement::Deallocate { .. } => Ok(Response::Execution(Tag::new("DEALLOCATE"))),
        Statement::Set(set) => change(client, set).await,
        _ => show(client, statement),
    }
}

fn forget(client: &mut impl ClientInfo) {
    client.metadata_mut().retain(|name, _| !SETTABLE.iter().any(|(known, _)| known == name));
}

async fn change<C>(client: &mut C, set: &Set) -> PgWireResult<Response>
where
    C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    let (name, value) = match set {
        Set::SingleAssignment { variable, values, .. } => {
            let values: Vec<String> = values.iter().map(text).collect();
            (variable.to_string().to_lowercase(), values.join(", "))
        }
        Set::SetTimeZone { value, .. } => ("timezone".to_owned(), text(value)),
        Set::SetNames { charset_name, .. } => ("client_encoding".to_owned(), charset_name.value.clone()),
        Set::SetNamesDefault {} => ("client_encoding".to_owned(), "UTF8".to_owned()),
        // All transactions are the same here.
        Set::SetTransaction { .. } => return Ok(Response::Execution(Tag::new("SET"))),
        _ => return Err(refusal::error("0A000", format!("{set}: expected a setting that is known here"))),
    };
    let Some((name, told)) = SETTABLE.iter().find(|(known, _)| *known == name) else {
        return Err(refusal::error("42704", format!("unrecognized configuration parameter \"{name}\"")));
    };
    if *name == "client_encoding" && !matches!(value.to_lowercase().as_str(), "utf8" | "utf-8" | "unicode" | "default")
    {
        return Err(refusal::error("22023", format!("client_encoding {value}: expected UTF8")));
    }
    if *name == "statement_timeout" && milliseconds(&value).is_none() {
        return Err(refusal::error("22023", format!("invalid value for parameter \"statement_timeout\": \"{value}\"")));
    }
    client.metadata_mut().insert((*name).to_owned(), value.clone());
    if let Some(told) = told {
        let status = ParameterStatus::new((*told).to_owned(), value);
        client.feed(PgWireBackendMessage::ParameterStatus(status)).await?;
    }
    Ok(Response::Execution(Tag::new("SET")))
}

fn text(value: &Expr) -> String {
    match value {
        Expr::Value(value) => value.clone().into_string().unwrap_or_else(|| value.to_string()),
        other => other.to_string().trim_matches(['\'', '"']).to_owned(),
    }
}

fn show(client: &impl ClientInfo, statement: &Statement) -> PgWireResult<Response> {
    let name = shown(statement).unwrap_or_default();
    let value = client.metadata().get(&name).map(String::as_str).or_else(|| preset(&name));
    let Some(value) = value else {
        return Err(refusal::error("42704", format!("unrecognized configuration parameter \"{name}\"")));
    };
    let fields = Arc::new(columns(statement));
    let mut row = DataRowEncoder::new(Arc::clone(&fields));
    row.encode_field(&Some(value))?;
    let row = row.take_row();
    Ok(Response::Query(QueryResponse::new(fields, stream::iter([Ok(row)]))))
}
