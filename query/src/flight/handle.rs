//! A statement with its parameters, as the bytes that a client gives back.

use std::io::Cursor;

use arrow::{
    array::RecordBatch,
    ipc::{reader::StreamReader, writer::StreamWriter},
};
use bytes::Bytes;
use datafusion::common::ScalarValue;
use tonic::Status;

/// What a handle stands for: the length of the statement (`u32`, little-endian), the statement, and one row of parameters as an
/// Arrow stream, or nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct Handle {
    pub(super) sql: String,
    parameters: Option<RecordBatch>,
}

impl Handle {
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), parameters: None }
    }

    /// The same statement with these parameters.
    pub(super) fn with(self, parameters: RecordBatch) -> Self {
        Self { parameters: Some(parameters), ..self }
    }

    pub(super) fn encode(&self) -> Result<Bytes, Status> {
        let mut bytes = Vec::with_capacity(4 + self.sql.len());
        bytes.extend_from_slice(&u32::try_from(self.sql.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(self.sql.as_bytes());
        if let Some(parameters) = &self.parameters {
            let mut writer = StreamWriter::try_new(&mut bytes, &parameters.schema()).map_err(broken)?;
            writer.write(parameters).and_then(|()| writer.finish()).map_err(broken)?;
        }
        Ok(bytes.into())
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let (length, rest) = bytes.split_first_chunk().ok_or_else(unknown)?;
        let (sql, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(unknown)?;
        let sql = String::from_utf8(sql.to_vec()).map_err(|_| unknown())?;
        let parameters = if rest.is_empty() {
            None
        } else {
            StreamReader::try_new(Cursor::new(rest), None).map_err(broken)?.next().transpose().map_err(broken)?
        };
        Ok(Self { sql, parameters })
    }

    /// The parameters, in order.
    pub(super) fn values(&self) -> Result<Vec<ScalarValue>, Status> {
        let Some(row) = &self.parameters else { return Ok(Vec::new()) };
        if row.num_rows() != 1 {
            let rows = row.num_rows();
            return Err(Status::invalid_argument(format!("one row of parameters is expected, and {rows} were given")));
        }
        let values = row.columns().iter().map(|column| ScalarValue::try_from_array(column, 0));
        values.collect::<Result<_, _>>().map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

fn unknown() -> Status {
    Status::invalid_argument("the handle is none of this server")
}

fn broken(error: arrow::error::ArrowError) -> Status {
    Status::invalid_argument(format!("parameters: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn a_handle_comes_back_with_its_parameters() {
        let row = RecordBatch::try_from_iter([
            ("a", Arc::new(Int64Array::from(vec![7])) as _),
            ("b", Arc::new(StringArray::from(vec!["x"])) as _),
        ]);
        let handle = Handle::new("SELECT $1, $2").with(row.unwrap());

        let back = Handle::decode(&handle.encode().unwrap()).unwrap();

        assert_eq!(back.sql, "SELECT $1, $2");
        assert_eq!(back.values().unwrap(), [ScalarValue::from(7_i64), ScalarValue::from("x")]);
        assert!(Handle::new("SELECT 1").values().unwrap().is_empty());
    }

    #[test]
    fn what_is_no_handle_is_refused() {
        for bytes in [&b""[..], b"abc", b"\xff\xff\xff\xffSELECT", b"\x01\0\0\0\xff", b"\x01\0\0\0Sgarbage"] {
            assert!(Handle::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
