//! `experts(l07)`: the ids of a layer as a list, in slot order.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, FixedSizeBinaryArray, Int32Array, ListArray},
    buffer::OffsetBuffer,
    datatypes::{DataType, Field, FieldRef},
};
use datafusion::{
    common::{Result, exec_err, plan_err},
    logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature},
};
use gatescope_routing::shape::IdWidth;

use super::{id_width, layer_signature};

/// `experts(layer column [, 'u8' | 'u16']) -> List<Int32>`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Experts {
    signature: Signature,
}

impl Experts {
    pub(crate) fn new() -> Self {
        Self { signature: layer_signature() }
    }
}

impl ScalarUDFImpl for Experts {
    fn name(&self) -> &str {
        "experts"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        plan_err!("experts(...) needs the fields of its arguments")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        id_width(self.name(), &args.arg_fields[0], args.scalar_arguments.get(1).copied())?;
        Ok(Arc::new(Field::new(self.name(), list_type(), args.arg_fields[0].is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let named = args.args.get(1).map(|width| match width {
            ColumnarValue::Scalar(width) => Some(width),
            ColumnarValue::Array(_) => None,
        });
        let width = id_width(self.name(), &args.arg_fields[0], named)?;
        let column = args.args[0].to_array(args.number_rows)?;
        let Some(column) = column.as_fixed_size_binary_opt() else {
            return exec_err!("experts(...) takes a layer column such as l00");
        };
        let lists: ArrayRef = Arc::new(lists(column, width));
        match &args.args[0] {
            ColumnarValue::Scalar(_) if !lists.is_empty() => {
                Ok(ColumnarValue::Scalar(datafusion::scalar::ScalarValue::try_from_array(&lists, 0)?))
            }
            _ => Ok(ColumnarValue::Array(lists)),
        }
    }
}

/// The type of a list of experts.
pub(crate) fn list_type() -> DataType {
    DataType::List(expert_field())
}

fn expert_field() -> FieldRef {
    Arc::new(Field::new("item", DataType::Int32, true))
}

/// `[rows, top_k]` ids as a list a row.
fn lists(column: &FixedSizeBinaryArray, width: IdWidth) -> ListArray {
    let top_k = column.value_size() / width.bytes();
    let ids: Int32Array = match width {
        IdWidth::U8 => column.value_data().iter().map(|&id| i32::from(id)).collect::<Vec<_>>().into(),
        IdWidth::U16 => {
            let ids = column.value_data().chunks_exact(2);
            ids.map(|id| i32::from(u16::from_le_bytes([id[0], id[1]]))).collect::<Vec<_>>().into()
        }
    };
    let offsets = OffsetBuffer::from_repeated_length(top_k, column.len());
    ListArray::new(expert_field(), offsets, Arc::new(ids), column.nulls().cloned())
}
