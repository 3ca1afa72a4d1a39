//! In what form an answer is wanted.

use axum::http::{HeaderMap, StatusCode, header};

use super::problem::Problem;
use crate::{answer::Answer, error::QueryError, format::Format};

/// The forms, by their media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Csv,
    Arrow,
    Parquet,
}

const ALL: [Media; 4] = [Media::Json, Media::Csv, Media::Arrow, Media::Parquet];

impl Media {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Csv => "text/csv",
            Self::Arrow => "application/vnd.apache.arrow.stream",
            Self::Parquet => "application/vnd.apache.parquet",
        }
    }

    /// The first of the client's wishes that can be met; JSON where it has none.
    pub(super) fn accepted(headers: &HeaderMap) -> Result<Self, Problem> {
        let wishes: Vec<&str> = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|wish| wish.split(';').next().unwrap_or_default().trim())
            .filter(|wish| !wish.is_empty())
            .collect();
        if wishes.is_empty() {
            return Ok(Self::Json);
        }
        let met = wishes.iter().find_map(|wish| match *wish {
            "*/*" | "application/*" => Some(Self::Json),
            "text/*" => Some(Self::Csv),
            name => ALL.into_iter().find(|media| media.name().eq_ignore_ascii_case(name)),
        });
        met.ok_or_else(|| {
            let names = ALL.map(Self::name).join(", ");
            Problem::new(StatusCode::NOT_ACCEPTABLE, format!("Accept: {}: expected one of {names}", wishes.join(", ")))
        })
    }

    pub(super) const fn format(self) -> Format {
        match self {
            Self::Json => Format::Json,
            Self::Csv => Format::Csv,
            Self::Arrow => Format::Arrow,
            Self::Parquet => Format::Parquet,
        }
    }

    /// Whether the answer's columns can be told in this form.
    pub(super) fn check(self, answer: &Answer) -> Result<(), QueryError> {
        self.format().check(&answer.schema())
    }
}
