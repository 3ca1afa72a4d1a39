/*!
Messages on an Arrow Flight `DoPut` stream.

A stream begins with the schema message, whose descriptor is the path [`DESCRIPTOR`]; every message after it is one batch
with its [`MessageId`] in `app_metadata`. Answers are `PutResult`s with an [`Ack`](crate::Ack) in theirs.
*/

use arrow::array::RecordBatch;
use arrow_flight::{FlightData, FlightDescriptor};
use bytes::Bytes;

use crate::{Event, MAX_MESSAGE_BYTES, MessageId, WireError, encode, ipc};

/// The one part of the path that the descriptor of a stream of events has.
pub const DESCRIPTOR: &str = "gatescope.wire";

/// The first message of a stream.
pub fn schema_message() -> Result<FlightData, WireError> {
    Ok(FlightData::new()
        .with_descriptor(FlightDescriptor::new_path(vec![DESCRIPTOR.to_owned()]))
        .with_data_header(ipc::schema_header()?))
}

/// One message: these events under this name.
pub fn message(id: &MessageId, events: &[Event]) -> Result<FlightData, WireError> {
    let (header, body) = ipc::batch_message(&encode(events)?)?;
    let data = FlightData::new().with_data_header(header).with_app_metadata(id.metadata()).with_data_body(body);
    let bytes = data.data_header.len() + data.app_metadata.len() + data.data_body.len();
    if bytes >= MAX_MESSAGE_BYTES {
        return Err(WireError::TooLarge(bytes));
    }
    Ok(data)
}

/// Whether this first message of a `DoPut` stream begins one of events, by its descriptor: other services share the method.
pub fn begins_stream(data: &FlightData) -> bool {
    data.flight_descriptor.as_ref().is_some_and(|descriptor| descriptor.path == [DESCRIPTOR])
}

/// Reads the messages of one stream.
#[derive(Debug, Default)]
pub struct Stream {
    begun: Option<Begun>,
}

#[derive(Debug)]
struct Begun {
    reader: ipc::Reader,
    schema: Bytes,
}

/// A message that came.
#[derive(Debug)]
pub struct Received {
    /// Its name.
    pub id: MessageId,
    /// Its batch, or why that cannot be read.
    pub batch: Result<RecordBatch, WireError>,
}

impl Stream {
    /// A stream that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next message; `None` for one that carries no events (the schema).
    ///
    /// # Errors
    /// Where the stream cannot go on: no readable schema, or a message without a readable name, which nobody can refuse.
    pub fn read(&mut self, data: &FlightData) -> Result<Option<Received>, WireError> {
        let Some(Begun { reader, .. }) = &self.begun else {
            let reader = ipc::Reader::new(&data.data_header)?;
            self.begun = Some(Begun { reader, schema: data.data_header.clone() });
            return Ok(None);
        };
        if data.data_header.is_empty() && data.app_metadata.is_empty() {
            return Ok(None);
        }
        let id = MessageId::read(&data.app_metadata)?;
        let batch = reader.batch(&data.data_header, data.data_body.clone());
        Ok(Some(Received { id, batch }))
    }

    /// A message of this stream that could be read, as an Arrow IPC stream of its own, columns of later versions included:
    /// what a log keeps and [`ipc::read_stream`] reads. Empty where the stream has not begun.
    pub fn record(&self, data: &FlightData) -> Vec<u8> {
        self.begun
            .as_ref()
            .map_or_else(Vec::new, |begun| ipc::write_stream(&begun.schema, &data.data_header, &data.data_body))
    }
}
