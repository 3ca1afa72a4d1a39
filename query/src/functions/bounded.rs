//! Functions whose answer can be large whatever they are given: `repeat('x', 1000000000)` is short. They make no more than a bounded
//! number of bytes for one batch of rows.

use std::sync::Arc;

use arrow::{
    array::{Array, AsArray, Int64Array},
    compute::{cast, kernels::length::length},
    datatypes::{DataType, FieldRef, Int64Type},
};
use datafusion::{
    common::{Result, exec_err},
    logical_expr::{
        ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    },
    prelude::SessionContext,
};

/// Bytes for one batch of rows.
const MOST: i128 = 64 << 20;
/// Bytes that an element of an array takes, at least.
const ELEMENT: i128 = 8;
/// Those functions, and how they grow.
const FUNCTIONS: [(&str, Growth); 7] = [
    ("repeat", Growth::Times),
    ("lpad", Growth::To),
    ("rpad", Growth::To),
    ("array_repeat", Growth::To),
    ("array_resize", Growth::To),
    ("range", Growth::Between),
    ("generate_series", Growth::Between),
];

/// How large an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Growth {
    /// The first argument as often as the second says.
    Times,
    /// As large as the second argument says.
    To,
    /// From the first argument to the second.
    Between,
}

/// Puts bounds around the functions of a session.
pub(crate) fn bind(context: &SessionContext) {
    let state = context.state();
    for (name, growth) in FUNCTIONS {
        if let Some(function) = state.scalar_functions().get(name) {
            context.register_udf(ScalarUDF::from(Bounded { function: Arc::clone(function), growth }));
        }
    }
}

/// A function that refuses to make too much.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    function: Arc<ScalarUDF>,
    growth: Growth,
}

impl Bounded {
    fn bytes(&self, args: &ScalarFunctionArgs) -> Result<i128> {
        let arguments = ColumnarValue::values_to_arrays(&args.args)?;
        let numbers = |index: usize| -> Result<Option<Int64Array>> {
            let Some(array) = arguments.get(index).filter(|array| array.data_type().is_integer()) else {
                return Ok(None);
            };
            Ok(Some(cast(array, &DataType::Int64)?.as_primitive::<Int64Type>().clone()))
        };
        let sum = |one: &dyn Fn(usize) -> i128, rows: usize| (0..rows).map(|row| one(row).max(0)).sum::<i128>();
        let at = |array: &Int64Array, row: usize| if array.is_null(row) { 0 } else { i128::from(array.value(row)) };
        let first = arguments.first();
        let Some(rows) = first.map(|array| array.len()) else { return Ok(0) };
        Ok(match self.growth {
            Growth::Times | Growth::To => {
                let Some(times) = numbers(1)? else { return Ok(0) };
                let lengths = match (self.growth, first) {
                    (Growth::Times, Some(text)) => {
                        Some(cast(&length(text)?, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
                    }
                    _ => None,
                };
                let each = |row: usize| lengths.as_ref().map_or(1, |lengths| at(lengths, row));
                sum(&|row| at(&times, row) * each(row), rows)
            }
            Growth::Between => {
                // range(n) begins at 0.
                let (from, to) = match (numbers(0)?, numbers(1)?) {
                    (Some(from), Some(to)) => (Some(from), to),
                    (Some(to), None) => (None, to),
                    _ => return Ok(0),
                };
                let step = numbers(2)?;
                let begin = |row: usize| from.as_ref().map_or(0, |from| at(from, row));
                let step = |row: usize| step.as_ref().map_or(1, |step| at(step, row)).abs().max(1);
                sum(&|row| (at(&to, row) - begin(row)).abs() / step(row) * ELEMENT, rows)
            }
        })
    }
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn aliases(&self) -> &[String] {
        self.function.aliases()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.function.return_type(arguments)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.function.return_field_from_args(args)
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(arguments)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.function.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let bytes = self.bytes(&args)?;
        if bytes > MOST {
            return exec_err!("{}(...) would make {bytes} bytes: expected {MOST} at most", self.name());
        }
        self.function.invoke_with_args(args)
    }
}
