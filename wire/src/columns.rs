//! The columns of one batch, by name and of the right type.

use arrow::{
    array::{
        Array, AsArray, BooleanArray, GenericBinaryArray, OffsetSizeTrait, RecordBatch, StringArray,
        TimestampMicrosecondArray, UInt32Array, UInt64Array,
    },
    buffer::{Buffer, NullBuffer},
    datatypes::{DataType, TimestampMicrosecondType, UInt32Type, UInt64Type},
};
use bytes::Bytes;

use crate::{
    MAX_EVENTS, WireError,
    error::shortened,
    schema::{Column, Form, check_version},
};

/// The known columns of a batch. One that is absent reads as null.
pub(crate) struct Columns {
    rows: usize,
    values: [Option<Values>; Column::COUNT],
}

enum Values {
    Text(StringArray),
    U32(UInt32Array),
    U64(UInt64Array),
    Time(TimestampMicrosecondArray),
    Boolean(BooleanArray),
    Bytes(Binary),
}

/// A binary column whose values can be shared.
struct Binary {
    nulls: Option<NullBuffer>,
    /// One more than rows, ascending, inside `data`: Arrow's own invariant.
    offsets: Vec<usize>,
    data: Bytes,
}

/// Lets [`Bytes`] share an Arrow buffer.
struct Shared(Buffer);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl Binary {
    fn new<O: OffsetSizeTrait>(array: &GenericBinaryArray<O>) -> Self {
        Self {
            nulls: array.nulls().cloned(),
            offsets: array.value_offsets().iter().map(|offset| offset.as_usize()).collect(),
            data: Bytes::from_owner(Shared(array.values().clone())),
        }
    }
}

impl Columns {
    /// Looks at a batch's version and the types of its columns.
    pub(crate) fn new(batch: &RecordBatch) -> Result<Self, WireError> {
        let schema = batch.schema_ref();
        check_version(schema.metadata())?;
        if batch.num_rows() > MAX_EVENTS {
            return Err(WireError::TooManyEvents(batch.num_rows()));
        }
        let mut values = [const { None }; Column::COUNT];
        for (field, array) in schema.fields().iter().zip(batch.columns()) {
            let Some(column) = Column::named(field.name()) else { continue };
            if !column.form().takes(field.data_type()) {
                let found = shortened(&field.data_type().to_string());
                return Err(WireError::ColumnType { column: column.name(), found, expected: column.form().expected() });
            }
            let slot = &mut values[column as usize];
            if slot.is_some() {
                return Err(WireError::RepeatedColumn(column.name().to_owned()));
            }
            *slot = Some(Values::new(column.form(), array.as_ref()));
        }
        if let Some(column) =
            Column::ALL.iter().find(|&&column| column.is_required() && values[column as usize].is_none())
        {
            return Err(WireError::NoColumn(column.name()));
        }
        Ok(Self { rows: batch.num_rows(), values })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn text(&self, column: Column, row: usize) -> Option<&str> {
        match &self.values[column as usize] {
            Some(Values::Text(array)) if array.is_valid(row) => Some(array.value(row)),
            _ => None,
        }
    }

    pub(crate) fn u32(&self, column: Column, row: usize) -> Option<u32> {
        match &self.values[column as usize] {
            Some(Values::U32(array)) if array.is_valid(row) => Some(array.value(row)),
            _ => None,
        }
    }

    pub(crate) fn u64(&self, column: Column, row: usize) -> Option<u64> {
        match &self.values[column as usize] {
            Some(Values::U64(array)) if array.is_valid(row) => Some(array.value(row)),
            _ => None,
        }
    }

    pub(crate) fn time(&self, column: Column, row: usize) -> Option<i64> {
        match &self.values[column as usize] {
            Some(Values::Time(array)) if array.is_valid(row) => Some(array.value(row)),
            _ => None,
        }
    }

    pub(crate) fn boolean(&self, column: Column, row: usize) -> Option<bool> {
        match &self.values[column as usize] {
            Some(Values::Boolean(array)) if array.is_valid(row) => Some(array.value(row)),
            _ => None,
        }
    }

    /// The bytes of a value, shared with the batch.
    pub(crate) fn bytes(&self, column: Column, row: usize) -> Option<Bytes> {
        match &self.values[column as usize] {
            Some(Values::Bytes(binary)) if binary.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) => {
                Some(binary.data.slice(binary.offsets[row]..binary.offsets[row + 1]))
            }
            _ => None,
        }
    }
}

impl Values {
    /// The array is of a type that the form takes.
    fn new(form: Form, array: &dyn Array) -> Self {
        match form {
            Form::Text => Self::Text(array.as_string::<i32>().clone()),
            Form::U32 => Self::U32(array.as_primitive::<UInt32Type>().clone()),
            Form::U64 => Self::U64(array.as_primitive::<UInt64Type>().clone()),
            Form::Time => Self::Time(array.as_primitive::<TimestampMicrosecondType>().clone()),
            Form::Boolean => Self::Boolean(array.as_boolean().clone()),
            Form::Binary | Form::LargeBinary => match array.data_type() {
                DataType::LargeBinary => Self::Bytes(Binary::new(array.as_binary::<i64>())),
                _ => Self::Bytes(Binary::new(array.as_binary::<i32>())),
            },
        }
    }
}
