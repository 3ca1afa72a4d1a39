//! Requests that are not clean, each with its findings, in order.

use arrow::array::RecordBatch;
use gatescope_routing::finding::Check;

use super::{
    FindingVerdict, RequestVerdict, SHOWN_FINDINGS, Scope, SideVerdict, Summary,
    columns::{Columns, int_at, text_at},
};
use crate::{answer::Answer, catalog::Catalog, error::QueryError};

/// Run, request id and choice: what requests and findings are sorted by.
type Key = (String, String, i32);

/// The requests in scope that are not clean, by run, request id and choice.
pub struct Verdicts {
    requests: Rows<RequestVerdict>,
    findings: Rows<(Key, FindingVerdict)>,
    summary: Summary,
}

impl Verdicts {
    /// Starts reading.
    ///
    /// # Errors
    /// If the tables cannot be read.
    pub async fn of(catalog: &Catalog, scope: &Scope) -> Result<Self, QueryError> {
        let condition = scope.condition();
        let requests = format!(
            "SELECT run, request_id, choice, status, expected_rows, rows FROM requests \
             WHERE (status <> 'whole' OR findings > 0) AND {condition} ORDER BY run, request_id, choice"
        );
        let findings = format!(
            "SELECT run, request_id, choice, \"check\", severity, position, positions, layer, role_a, role_b, \
             instance_a, instance_b, experts_a, experts_b, detail FROM mismatches WHERE {condition} \
             ORDER BY run, request_id, choice, \"check\", position, layer"
        );
        Ok(Self {
            requests: Rows::new(catalog.query(&requests).await?, request),
            findings: Rows::new(catalog.query(&findings).await?, finding),
            summary: summary(catalog, &condition).await?,
        })
    }

    /// Counts over everything in scope, clean or not.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The next request that is not clean.
    ///
    /// # Errors
    /// If the tables cannot be read.
    pub async fn next(&mut self) -> Result<Option<RequestVerdict>, QueryError> {
        let of_request = self.requests.peek().await?.map(key);
        let of_finding = self.findings.peek().await?.map(|(key, _)| key.clone());
        let stored = match (&of_request, &of_finding) {
            (None, None) => return Ok(None),
            (Some(request), Some(finding)) => request <= finding,
            (request, _) => request.is_some(),
        };
        let mut verdict = match (stored, of_finding) {
            (false, Some((run, request_id, choice))) => RequestVerdict {
                run,
                request_id,
                choice,
                status: None,
                expected_rows: None,
                rows: None,
                findings: Vec::new(),
                more_findings: 0,
            },
            _ => match self.requests.take().await? {
                Some(verdict) => verdict,
                None => return Ok(None),
            },
        };
        let key = key(&verdict);
        while self.findings.peek().await?.is_some_and(|(of, _)| *of == key) {
            match self.findings.take().await? {
                Some((_, finding)) if verdict.findings.len() < SHOWN_FINDINGS => verdict.findings.push(finding),
                _ => verdict.more_findings += 1,
            }
        }
        Ok(Some(verdict))
    }
}

fn key(verdict: &RequestVerdict) -> Key {
    (verdict.run.clone(), verdict.request_id.clone(), verdict.choice)
}

fn request(batch: &RecordBatch, row: usize) -> Result<RequestVerdict, QueryError> {
    let columns = Columns(batch);
    Ok(RequestVerdict {
        run: columns.text("run")?.value(row).to_owned(),
        request_id: columns.text("request_id")?.value(row).to_owned(),
        choice: columns.int("choice")?.value(row),
        status: text_at(columns.text("status")?, row),
        expected_rows: int_at(columns.int("expected_rows")?, row),
        rows: int_at(columns.int("rows")?, row),
        findings: Vec::new(),
        more_findings: 0,
    })
}

fn finding(batch: &RecordBatch, row: usize) -> Result<(Key, FindingVerdict), QueryError> {
    let columns = Columns(batch);
    let text = |name| Ok::<_, QueryError>(columns.text(name)?.value(row).to_owned());
    let check = text("check")?;
    let side = |role, instance, experts| -> Result<Option<SideVerdict>, QueryError> {
        let role = text_at(columns.text(role)?, row);
        let instance = text_at(columns.text(instance)?, row);
        let experts = columns.ints(experts, row)?.filter(|experts| !experts.is_empty());
        let known = role.is_some() || instance.is_some() || experts.is_some();
        Ok(known.then_some(SideVerdict { role, instance, experts }))
    };
    let finding = FindingVerdict {
        name: check.parse::<Check>().map_or_else(|_| String::new(), |check| check.name().to_owned()),
        check,
        severity: text("severity")?,
        position: int_at(columns.int("position")?, row),
        positions: columns.int("positions")?.value(row),
        layer: int_at(columns.int("layer")?, row),
        a: side("role_a", "instance_a", "experts_a")?,
        b: side("role_b", "instance_b", "experts_b")?,
        detail: text("detail")?,
    };
    Ok(((text("run")?, text("request_id")?, columns.int("choice")?.value(row)), finding))
}

async fn summary(catalog: &Catalog, condition: &str) -> Result<Summary, QueryError> {
    let mut summary = Summary::default();
    let statuses = format!(
        "SELECT status, count(*) AS requests, count(*) FILTER (WHERE status = 'whole' AND findings = 0) AS clean \
         FROM requests WHERE {condition} GROUP BY status"
    );
    let mut statuses = catalog.query(&statuses).await?;
    while let Some(batch) = statuses.next().await {
        let batch = batch?;
        let columns = Columns(&batch);
        let (status, requests, clean) = (columns.text("status")?, columns.long("requests")?, columns.long("clean")?);
        for row in 0..batch.num_rows() {
            let requests = requests.value(row) as u64;
            summary.requests += requests;
            summary.clean += clean.value(row) as u64;
            match status.value(row) {
                "whole" => summary.whole += requests,
                "incomplete" => summary.incomplete += requests,
                _ => summary.conflict += requests,
            }
        }
    }
    let codes = format!("SELECT \"check\", count(*) AS findings FROM mismatches WHERE {condition} GROUP BY \"check\"");
    let mut codes = catalog.query(&codes).await?;
    while let Some(batch) = codes.next().await {
        let batch = batch?;
        let columns = Columns(&batch);
        let (check, findings) = (columns.text("check")?, columns.long("findings")?);
        for row in 0..batch.num_rows() {
            summary.findings.insert(check.value(row).to_owned(), findings.value(row) as u64);
        }
    }
    Ok(summary)
}

/// Rows of an answer one by one, with a look at the next.
struct Rows<T> {
    answer: Answer,
    batch: Option<(RecordBatch, usize)>,
    next: Option<T>,
    read: fn(&RecordBatch, usize) -> Result<T, QueryError>,
}

impl<T> Rows<T> {
    fn new(answer: Answer, read: fn(&RecordBatch, usize) -> Result<T, QueryError>) -> Self {
        Self { answer, batch: None, next: None, read }
    }

    async fn peek(&mut self) -> Result<Option<&T>, QueryError> {
        while self.next.is_none() {
            match &mut self.batch {
                Some((batch, row)) if *row < batch.num_rows() => {
                    self.next = Some((self.read)(batch, *row)?);
                    *row += 1;
                }
                _ => match self.answer.next().await {
                    Some(batch) => self.batch = Some((batch?, 0)),
                    None => break,
                },
            }
        }
        Ok(self.next.as_ref())
    }

    async fn take(&mut self) -> Result<Option<T>, QueryError> {
        self.peek().await?;
        Ok(self.next.take())
    }
}
