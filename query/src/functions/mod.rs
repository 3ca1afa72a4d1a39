//! What SQL gets on top of DataFusion's own functions.

mod balance;
pub(crate) mod bounded;
mod expert_counts;
mod experts;
mod histogram;
mod load;
mod routing;

pub(crate) use self::{
    balance::ExpertBalance,
    expert_counts::ExpertCounts,
    experts::{Experts, list_type},
    load::{BalanceTable, RankLoad},
    routing::Routing,
};

use arrow::datatypes::{DataType, Field};
use datafusion::{
    common::{Result, ScalarValue, plan_err},
    logical_expr::{Signature, TypeSignature, Volatility},
};
use gatescope_routing::shape::{IdWidth, MAX_TOP_K};

use crate::layer_column::{parse_width, width_of};

/// A layer column, and perhaps the width of its ids.
fn layer_signature() -> Signature {
    Signature::one_of(vec![TypeSignature::Any(1), TypeSignature::Any(2)], Volatility::Immutable)
}

/// The width of the ids that `function` is given.
///
/// Metadata of a field gets lost in expressions other than a plain column (`CASE`, `coalesce`), so it can be named.
fn id_width(function: &str, column: &Field, named: Option<Option<&ScalarValue>>) -> Result<IdWidth> {
    let DataType::FixedSizeBinary(bytes) = column.data_type() else {
        return plan_err!(
            "{function}(...) takes a layer column such as l00; {} is of type {}",
            column.name(),
            column.data_type()
        );
    };
    let width = match named {
        None => width_of(column),
        Some(value) => {
            let name = value.and_then(|value| value.try_as_str().flatten());
            let Some(width) = name.and_then(parse_width) else {
                return plan_err!("{function}(column, width): the width is 'u8' or 'u16'");
            };
            Some(width)
        }
    };
    match width {
        Some(width) if is_row(*bytes as usize, width) => Ok(width),
        Some(width) => plan_err!("{function}({}): {bytes} bytes a row are no ids of {}", column.name(), width.name()),
        None => plan_err!(
            "{function}({}): it is not known here how wide its ids are; say it: {function}(..., 'u8') or 'u16'",
            column.name()
        ),
    }
}

fn is_row(bytes: usize, width: IdWidth) -> bool {
    bytes > 0 && bytes.is_multiple_of(width.bytes()) && bytes / width.bytes() <= MAX_TOP_K as usize
}
