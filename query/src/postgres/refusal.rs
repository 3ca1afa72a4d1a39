//! Errors as Postgres clients know them: with a code of five characters.

use datafusion_postgres::pgwire::error::{ErrorInfo, PgWireError};

use crate::error::QueryError;

/// An error of one statement.
pub(super) fn error(code: &str, message: impl Into<String>) -> PgWireError {
    PgWireError::UserError(Box::new(ErrorInfo::new("ERROR".to_owned(), code.to_owned(), message.into())))
}

/// An error that ends the connection.
pub(super) fn fatal(code: &str, message: impl Into<String>) -> PgWireError {
    PgWireError::UserError(Box::new(ErrorInfo::new("FATAL".to_owned(), code.to_owned(), message.into())))
}

impl From<QueryError> for PgWireError {
    fn from(refused: QueryError) -> Self {
        let code = match &refused {
            QueryError::ReadOnly(_) => "25006",
            QueryError::Query(_) => "42000",
            QueryError::TooSlow(_) => "57014",
            QueryError::Memory(_) => "53200",
            QueryError::Busy { .. } => "53300",
            QueryError::Live(_) => "57P03",
            _ => "XX000",
        };
        error(code, refused.to_string())
    }
}
