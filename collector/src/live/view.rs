//! What is not in the tables yet, as one moment had it.

use std::sync::Arc;

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use gatescope_routing::{
    finding::Finding,
    join::{Joined, RequestJoin},
};

use super::{about::About, parked::Parked};
use crate::tables::{ClosedRequest, InMemory, RoutingTable, TablesError};

/// Everything acknowledged that the tables do not have: closed requests that no commit has stored, and open ones as far as
/// they came.
///
/// A closed request that may be stored already, and one to which something came late, are shown once they are
/// committed.
#[derive(Debug, Clone)]
pub struct View {
    number: u64,
    rows: Arc<InMemory>,
}

/// An open request.
#[derive(Debug, Clone)]
pub(super) struct OpenRequest {
    pub(super) about: About,
    pub(super) request: Arc<RequestJoin>,
    pub(super) parked: Vec<Parked>,
}

/// What the joiner gives: cheap to take, not yet joined.
#[derive(Debug)]
pub(super) struct Glimpse {
    pub(super) number: u64,
    pub(super) closed: Vec<Arc<ClosedRequest>>,
    pub(super) open: Vec<OpenRequest>,
}

impl Glimpse {
    /// Joins the open requests as they are. Blocks.
    pub(super) fn view(self) -> View {
        let open = self.open.into_iter().filter_map(OpenRequest::so_far).map(Arc::new).collect();
        View { number: self.number, rows: Arc::new(InMemory::new(self.closed, open)) }
    }
}

impl OpenRequest {
    fn so_far(self) -> Option<ClosedRequest> {
        let mut request = self.request;
        for parked in &self.parked {
            match parked.read() {
                Ok(parts) => {
                    let request = Arc::make_mut(&mut request);
                    parts.into_iter().for_each(|part| {
                        request.apply(part);
                    });
                }
                // Said where it matters: when the request closes.
                Err(error) => tracing::debug!(request = %self.about.key, %error, "parked rows are not shown"),
            }
        }
        let mut joined: Joined = request.close(&self.about.rules(), &self.about.context());
        if super::about::says_nothing(&joined) {
            return None;
        }
        // What is missing may still come, and what differs is said when all is there.
        joined.findings = Vec::<Finding>::new();
        Some(self.about.closed(joined, chrono::Utc::now().timestamp_micros(), false))
    }
}

impl View {
    /// The number of the commit that this view goes with.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Requests in it, closed and open.
    pub fn requests(&self) -> (usize, usize) {
        self.rows.requests()
    }

    /// The routing tables that it has rows for.
    pub fn routing_tables(&self) -> Vec<RoutingTable> {
        self.rows.routing_tables()
    }

    /// Its rows of a table, in the columns that the tables have; with `projection` only these of them. Blocks on work.
    ///
    /// # Errors
    /// Where the columns cannot be built.
    pub fn rows(&self, table: &str, projection: Option<&[usize]>) -> Result<Vec<RecordBatch>, TablesError> {
        self.rows.rows(table, projection)
    }

    /// The columns of a table; `None` where it has none of that name.
    pub fn schema(&self, table: &str) -> Option<SchemaRef> {
        self.rows.schema(table)
    }
}
