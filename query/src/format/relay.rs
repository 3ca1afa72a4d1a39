//! An answer that comes as an Arrow IPC stream, written in another format.

use std::io::Write;

use arrow::{buffer::Buffer, ipc::reader::StreamDecoder};

use super::{Format, RowWriter};
use crate::error::QueryError;

/// Takes the bytes of an Arrow IPC stream as they come, and writes its rows.
pub struct Relay<W: Write + Send + 'static> {
    format: Format,
    decoder: StreamDecoder,
    output: Option<W>,
    writer: Option<Box<dyn RowWriter + Send>>,
}

impl<W: Write + Send + 'static> Relay<W> {
    /// Writes to this output in this format.
    pub fn new(format: Format, output: W) -> Self {
        Self { format, decoder: StreamDecoder::new(), output: Some(output), writer: None }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// Where they are no Arrow IPC stream, or the output fails.
    pub fn take(&mut self, bytes: Vec<u8>) -> Result<(), QueryError> {
        let mut bytes = Buffer::from_vec(bytes);
        while !bytes.is_empty() {
            let batch = self.decoder.decode(&mut bytes).map_err(super::written)?;
            self.begin()?;
            if let (Some(batch), Some(writer)) = (batch, &mut self.writer) {
                writer.write(&batch)?;
            }
        }
        Ok(())
    }

    /// The stream has ended.
    ///
    /// # Errors
    /// Where it ended inside of a message, or the output fails.
    pub fn finish(mut self) -> Result<(), QueryError> {
        self.decoder.finish().map_err(super::written)?;
        self.begin()?;
        match self.writer {
            Some(writer) => writer.finish(),
            None => Err(QueryError::Query("the answer has no columns: expected an Arrow stream".to_owned())),
        }
    }

    fn begin(&mut self) -> Result<(), QueryError> {
        if let Some(schema) = self.decoder.schema()
            && let Some(output) = self.output.take()
        {
            self.writer = Some(self.format.writer(schema, output)?);
        }
        Ok(())
    }
}
