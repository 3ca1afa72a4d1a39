/*!
Arrow IPC messages of others, read without trust.

The Arrow crate's reader takes headers at their word: a header whose buffers lie outside its body, or whose schema names a
type it does not know, ends in a panic, and a compressed buffer may claim any size. What is here looks first.
*/

use std::{collections::HashMap, sync::Arc};

use arrow::{
    array::RecordBatch,
    buffer::Buffer,
    datatypes::{DataType, Field, Schema, SchemaRef},
    ipc::{
        self, MetadataVersion,
        reader::RecordBatchDecoder,
        writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions},
    },
};
use bytes::{Buf, Bytes};

use crate::{
    MAX_EVENTS, MAX_MESSAGE_BYTES, WireError,
    error::shortened,
    schema::{Column, check_version, schema},
};

/// Most columns of a schema, those of later versions among them.
const MAX_COLUMNS: usize = 256;
/// Most bytes of a message's header: it has some 60 for each column.
const MAX_HEADER_BYTES: usize = 128 << 10;

/// The header (`Message` of Arrow's flatbuffers) that says the [`schema`].
pub fn schema_header() -> Result<Bytes, WireError> {
    let encoded = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
        &schema(),
        &mut DictionaryTracker::new(false),
        &options()?,
    );
    Ok(encoded.ipc_message.into())
}

/// The header and the body of a batch's message.
pub fn batch_message(batch: &RecordBatch) -> Result<(Bytes, Bytes), WireError> {
    let (_, encoded) = IpcDataGenerator::default()
        .encode(batch, &mut DictionaryTracker::new(false), &options()?, &mut IpcWriteContext::default())
        .map_err(arrow_error)?;
    Ok((encoded.ipc_message.into(), encoded.arrow_data.into()))
}

fn options() -> Result<IpcWriteOptions, WireError> {
    // Buffers of eight bytes' alignment: 64 would cost more than many a column here has.
    IpcWriteOptions::try_new(8, false, MetadataVersion::V5).map_err(arrow_error)
}

fn arrow_error(error: arrow::error::ArrowError) -> WireError {
    WireError::Arrow(shortened(&error.to_string()))
}

fn refused(found: impl Into<String>, expected: &'static str) -> WireError {
    WireError::Ipc { found: found.into(), expected }
}

/// Reads the batches of one stream, whose schema it has seen.
#[derive(Debug, Clone)]
pub struct Reader {
    schema: SchemaRef,
    /// Which columns are known: the others are passed over.
    known: Arc<[usize]>,
}

impl Reader {
    /// Reads the header of a schema message.
    pub fn new(header: &[u8]) -> Result<Self, WireError> {
        let message = message(header)?;
        let Some(fb) = message.header_as_schema() else {
            return Err(refused(message.header_type().variant_name().unwrap_or("unknown"), "a schema first"));
        };
        if fb.endianness() != ipc::Endianness::Little {
            return Err(refused("big-endian", "little-endian"));
        }
        let fields = fb.fields().ok_or_else(|| refused("a schema without fields", "columns"))?;
        if fields.len() > MAX_COLUMNS {
            return Err(refused(format!("{} columns", fields.len()), "at most 256"));
        }
        let mut known = Vec::with_capacity(Column::COUNT);
        let fields = fields
            .iter()
            .enumerate()
            .map(|(index, fb)| {
                let field = field(&fb)?;
                if Column::named(field.name()).is_some() {
                    known.push(index);
                }
                Ok(field)
            })
            .collect::<Result<Vec<Field>, WireError>>()?;
        let metadata: HashMap<String, String> = fb
            .custom_metadata()
            .into_iter()
            .flatten()
            .filter_map(|entry| Some((entry.key()?.to_owned(), entry.value()?.to_owned())))
            .collect();
        check_version(&metadata)?;
        Ok(Self { schema: Arc::new(Schema::new_with_metadata(fields, metadata)), known: known.into() })
    }

    /// Reads a batch: the known columns of it, sharing `body`'s memory.
    pub fn batch(&self, header: &[u8], body: Bytes) -> Result<RecordBatch, WireError> {
        if body.len() > MAX_MESSAGE_BYTES {
            return Err(WireError::TooLarge(body.len()));
        }
        let message = message(header)?;
        let Some(batch) = message.header_as_record_batch() else {
            return Err(refused(message.header_type().variant_name().unwrap_or("unknown"), "a record batch"));
        };
        if message.bodyLength() != body.len() as i64 {
            let found = format!("a body of {} bytes, of {} by its header", body.len(), message.bodyLength());
            return Err(refused(found, "equal lengths"));
        }
        self.check(&batch, body.len())?;
        let body = Buffer::from(body);
        let none = HashMap::new();
        RecordBatchDecoder::try_new(&body, batch, self.schema.clone(), &none, &message.version())
            .and_then(|decoder| decoder.with_projection(Some(&self.known)).read_record_batch())
            .map_err(arrow_error)
    }

    /// Whether the header speaks of what is there: as many nodes and buffers as the columns have, inside the body.
    fn check(&self, batch: &ipc::RecordBatch<'_>, body: usize) -> Result<(), WireError> {
        if batch.compression().is_some() {
            return Err(refused("compressed buffers", "uncompressed ones"));
        }
        if batch.variadicBufferCounts().is_some_and(|counts| !counts.is_empty()) {
            return Err(refused("variadic buffers", "none"));
        }
        let rows = batch.length();
        if !(0..=MAX_EVENTS as i64).contains(&rows) {
            return Err(WireError::TooManyEvents(usize::try_from(rows).unwrap_or(usize::MAX)));
        }
        let nodes = batch.nodes().ok_or_else(|| refused("no nodes", "one for each column"))?;
        if nodes.len() != self.schema.fields().len() {
            return Err(refused(format!("{} nodes", nodes.len()), "one for each column"));
        }
        let buffers = batch.buffers().ok_or_else(|| refused("no buffers", "those of each column"))?;
        let expected: usize = self.schema.fields().iter().map(|field| layout(field.data_type()).len()).sum();
        if buffers.len() != expected {
            return Err(refused(format!("{} buffers", buffers.len()), "as many as the columns have"));
        }
        let mut buffers = buffers.iter();
        let mut total = 0;
        for (field, node) in self.schema.fields().iter().zip(nodes) {
            if node.length() != rows || !(0..=rows).contains(&node.null_count()) {
                let found = format!("a column of {} rows, {} of them null", node.length(), node.null_count());
                return Err(refused(found, "as many rows as the batch has"));
            }
            for (part, buffer) in layout(field.data_type()).iter().zip(&mut buffers) {
                total += check_buffer(*part, buffer, rows, node.null_count(), body as i64)?;
            }
        }
        // Each may be copied to be aligned: many that are one and the same would make much of little.
        if total > body as i64 {
            return Err(refused("buffers that overlap", "each byte of the body in one buffer at most"));
        }
        Ok(())
    }
}

/// Writes a whole Arrow IPC stream of one batch, from the schema's header and the batch's header and body: what
/// [`read_stream`] and any other Arrow reads.
pub fn write_stream(schema: &[u8], header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut stream = Vec::with_capacity(schema.len() + header.len() + body.len() + 64);
    for (header, body) in [(schema, &[][..]), (header, body)] {
        let padding = header.len().next_multiple_of(8) - header.len();
        stream.extend_from_slice(&CONTINUATION.to_le_bytes());
        stream.extend_from_slice(&((header.len() + padding) as u32).to_le_bytes());
        stream.extend_from_slice(header);
        stream.extend(std::iter::repeat_n(0, padding));
        stream.extend_from_slice(body);
    }
    stream.extend_from_slice(&CONTINUATION.to_le_bytes());
    stream.extend_from_slice(&0u32.to_le_bytes());
    stream
}

/// Before each message of a stream.
const CONTINUATION: u32 = 0xffff_ffff;

/// A batch as an Arrow IPC stream of its own: what a log keeps of one that did not come in a stream of messages.
pub fn stream_of(batch: &RecordBatch) -> Result<Vec<u8>, WireError> {
    let encoded = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
        &batch.schema(),
        &mut DictionaryTracker::new(false),
        &options()?,
    );
    let (header, body) = batch_message(batch)?;
    Ok(write_stream(&encoded.ipc_message, &header, &body))
}

/// Reads the batches of a whole Arrow IPC stream (the *streaming format*: a schema, then batches).
///
/// # Errors
/// Where the stream does not begin with a schema of this version. Each batch may fail by itself; what follows a message
/// whose length cannot be read is lost.
pub fn read_stream(mut stream: Bytes) -> Result<impl Iterator<Item = Result<RecordBatch, WireError>>, WireError> {
    let Some((schema, _)) = next_message(&mut stream)? else {
        return Err(refused("an empty stream", "a schema first"));
    };
    let reader = Reader::new(&schema)?;
    Ok(std::iter::from_fn(move || match next_message(&mut stream) {
        Ok(None) => None,
        Ok(Some((header, body))) => Some(reader.batch(&header, body)),
        Err(error) => {
            stream.clear();
            Some(Err(error))
        }
    }))
}

/// Cuts the next message off a stream: header and body; `None` at the stream's end.
fn next_message(stream: &mut Bytes) -> Result<Option<(Bytes, Bytes)>, WireError> {
    let cut = || refused("a stream that ends inside a message", "whole messages");
    if stream.is_empty() {
        return Ok(None);
    }
    if stream.try_get_u32_le().map_err(|_| cut())? != CONTINUATION {
        return Err(refused("no continuation marker", "Arrow's streaming format of version 0.15 or later"));
    }
    let header = stream.try_get_u32_le().map_err(|_| cut())? as usize;
    if header == 0 {
        return Ok(None);
    }
    if header > stream.len() {
        return Err(cut());
    }
    let header = stream.split_to(header);
    let body = usize::try_from(message(&header)?.bodyLength()).map_err(|_| cut())?;
    if body > stream.len() {
        return Err(cut());
    }
    Ok(Some((header, stream.split_to(body))))
}

fn message(header: &[u8]) -> Result<ipc::Message<'_>, WireError> {
    if header.len() > MAX_HEADER_BYTES {
        return Err(refused(format!("a header of {} bytes", header.len()), "at most 131,072"));
    }
    let message = ipc::root_as_message(header)
        .map_err(|error| refused(shortened(&error.to_string()), "a header of Arrow's IPC format"))?;
    if !matches!(message.version(), MetadataVersion::V4 | MetadataVersion::V5) {
        return Err(refused("an old or unknown metadata version", "V4 or V5"));
    }
    Ok(message)
}

/// A column of a known one's name has a type that such columns have, or is refused later; one of another name may have any
/// flat type, to be passed over.
fn field(fb: &ipc::Field<'_>) -> Result<Field, WireError> {
    let name = fb.name().ok_or_else(|| refused("a column without name", "names"))?;
    let flat = || refused(format!("column {}: {:?}", shortened(name), fb.type_type()), "a flat type");
    if fb.dictionary().is_some() || fb.children().is_some_and(|children| !children.is_empty()) {
        return Err(flat());
    }
    let data_type = data_type(fb).ok_or_else(flat)?;
    Ok(Field::new(name, data_type, fb.nullable()))
}

fn data_type(fb: &ipc::Field<'_>) -> Option<DataType> {
    Some(match fb.type_type() {
        ipc::Type::Null => DataType::Null,
        ipc::Type::Bool => DataType::Boolean,
        ipc::Type::Utf8 => DataType::Utf8,
        ipc::Type::LargeUtf8 => DataType::LargeUtf8,
        ipc::Type::Binary => DataType::Binary,
        ipc::Type::LargeBinary => DataType::LargeBinary,
        ipc::Type::FixedSizeBinary => {
            let width = fb.type_as_fixed_size_binary()?.byteWidth();
            (width >= 0).then_some(DataType::FixedSizeBinary(width))?
        }
        ipc::Type::Int => {
            let int = fb.type_as_int()?;
            match (int.bitWidth(), int.is_signed()) {
                (8, true) => DataType::Int8,
                (8, false) => DataType::UInt8,
                (16, true) => DataType::Int16,
                (16, false) => DataType::UInt16,
                (32, true) => DataType::Int32,
                (32, false) => DataType::UInt32,
                (64, true) => DataType::Int64,
                (64, false) => DataType::UInt64,
                _ => return None,
            }
        }
        ipc::Type::FloatingPoint => match fb.type_as_floating_point()?.precision() {
            ipc::Precision::HALF => DataType::Float16,
            ipc::Precision::SINGLE => DataType::Float32,
            ipc::Precision::DOUBLE => DataType::Float64,
            _ => return None,
        },
        ipc::Type::Timestamp => {
            let time = fb.type_as_timestamp()?;
            DataType::Timestamp(unit(time.unit())?, time.timezone().map(Arc::from))
        }
        _ => return None,
    })
}

fn unit(unit: ipc::TimeUnit) -> Option<arrow::datatypes::TimeUnit> {
    use arrow::datatypes::TimeUnit;
    match unit {
        ipc::TimeUnit::SECOND => Some(TimeUnit::Second),
        ipc::TimeUnit::MILLISECOND => Some(TimeUnit::Millisecond),
        ipc::TimeUnit::MICROSECOND => Some(TimeUnit::Microsecond),
        ipc::TimeUnit::NANOSECOND => Some(TimeUnit::Nanosecond),
        _ => None,
    }
}

/// One of a column's buffers.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// A bit for each row; empty where no row is null.
    Validity,
    /// A bit for each row.
    Bits,
    /// These bytes for each row.
    Values(i64),
    /// These bytes for each row, and once more.
    Offsets(i64),
    /// Bytes that offsets point into.
    Data,
}

/// Whether a buffer lies in the body and is as long as its column needs; Arrow takes a shorter one, or part of a value, for
/// a fault of its caller's, and panics. Gives its length.
fn check_buffer(part: Part, buffer: &ipc::Buffer, rows: i64, nulls: i64, body: i64) -> Result<i64, WireError> {
    let (offset, length) = (buffer.offset(), buffer.length());
    // Rows are few: nothing here overflows.
    let (unit, least) = match part {
        Part::Validity => (1, if nulls > 0 { (rows + 7) / 8 } else { 0 }),
        Part::Bits => (1, (rows + 7) / 8),
        Part::Values(bytes) => (bytes, rows * bytes),
        Part::Offsets(bytes) => (bytes, if rows > 0 { (rows + 1) * bytes } else { 0 }),
        Part::Data => (1, 0),
    };
    let inside = offset >= 0 && length >= 0 && offset.checked_add(length).is_some_and(|end| end <= body);
    if !inside || length < least || length % unit != 0 {
        let found = format!("a buffer of {length} bytes at {offset}, for {rows} rows");
        return Err(refused(found, "whole values for each row, inside the body"));
    }
    Ok(length)
}

/// The buffers that a column of this type has in a message; only types that [`data_type`] gives come here.
fn layout(data_type: &DataType) -> &'static [Part] {
    use Part::{Bits, Data, Offsets, Validity, Values};
    match data_type {
        DataType::Null => &[],
        DataType::Utf8 | DataType::Binary => &[Validity, Offsets(4), Data],
        DataType::LargeUtf8 | DataType::LargeBinary => &[Validity, Offsets(8), Data],
        DataType::Boolean => &[Validity, Bits],
        other => match other.primitive_width() {
            Some(1) => &[Validity, Values(1)],
            Some(2) => &[Validity, Values(2)],
            Some(4) => &[Validity, Values(4)],
            Some(8) => &[Validity, Values(8)],
            // Columns of fixed-size binary are passed over, so nobody reads their values.
            _ => &[Validity, Data],
        },
    }
}
