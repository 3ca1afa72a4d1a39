//! `expert_counts(l07)`: how many tokens chose each expert of a layer.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, Int64Array, ListArray},
    buffer::OffsetBuffer,
    datatypes::{DataType, Field, FieldRef, Int64Type},
};
use datafusion::{
    common::{Result, ScalarValue, internal_err, plan_err},
    logical_expr::{
        Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature,
        function::{AccumulatorArgs, StateFieldsArgs},
        utils::{AggregateOrderSensitivity, format_state_name},
    },
};
use gatescope_routing::shape::IdWidth;

use super::{histogram::Histogram, id_width, layer_signature};

/// `expert_counts(layer column [, 'u8' | 'u16']) -> List<Int64>`: the index is the expert, zeros at the end are left out.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ExpertCounts {
    signature: Signature,
}

impl ExpertCounts {
    pub(crate) fn new() -> Self {
        Self { signature: layer_signature() }
    }

    fn width(&self, args: &AccumulatorArgs) -> Result<IdWidth> {
        if args.is_distinct {
            return plan_err!("expert_counts(DISTINCT ...): every token counts; leave DISTINCT out");
        }
        let named =
            args.exprs.get(1).map(|expr| expr.downcast_ref::<datafusion::physical_expr::expressions::Literal>());
        id_width(self.name(), &args.expr_fields[0], named.map(|literal| literal.map(|literal| literal.value())))
    }
}

impl AggregateUDFImpl for ExpertCounts {
    fn name(&self) -> &str {
        "expert_counts"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types.first() {
            Some(DataType::FixedSizeBinary(_)) => Ok(list_type()),
            Some(other) => {
                plan_err!("expert_counts(...) takes a layer column such as l00; this one is of type {other}")
            }
            None => plan_err!("expert_counts(...) takes a layer column such as l00"),
        }
    }

    fn is_nullable(&self) -> bool {
        false
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new(format_state_name(args.name, "counts"), list_type(), false))])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Counts(Histogram::new(self.width(&args)?))))
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(GroupCounts { width: self.width(&args)?, groups: Vec::new() }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn default_value(&self, _data_type: &DataType) -> Result<ScalarValue> {
        Ok(scalar(Vec::new()))
    }
}

/// All rows together.
#[derive(Debug)]
struct Counts(Histogram);

impl Accumulator for Counts {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.0.add(layer(values)?);
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for_each_state(states, |_, counts| self.0.add_counts(counts))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![scalar(self.0.counts())])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(scalar(self.0.counts()))
    }

    fn size(&self) -> usize {
        self.0.bytes()
    }
}

/// A plain table per group: there may be many groups of few rows.
#[derive(Debug)]
struct GroupCounts {
    width: IdWidth,
    groups: Vec<Vec<i64>>,
}

impl GroupCounts {
    fn add(&mut self, column: &FixedSizeBinaryArray, groups: &[usize], filter: Option<&BooleanArray>, total: usize) {
        self.groups.resize(total, Vec::new());
        let width = self.width.bytes();
        for (row, &group) in groups.iter().enumerate() {
            if column.is_null(row) || filter.is_some_and(|filter| filter.is_null(row) || !filter.value(row)) {
                continue;
            }
            let counts = &mut self.groups[group];
            for id in column.value(row).chunks_exact(width) {
                let id = id.iter().rev().fold(0, |id, &byte| id << 8 | usize::from(byte));
                if id >= counts.len() {
                    counts.resize(id + 1, 0);
                }
                counts[id] += 1;
            }
        }
    }
}

impl GroupsAccumulator for GroupCounts {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.add(layer(values)?, group_indices, opt_filter, total_num_groups);
        Ok(())
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        self.groups.resize(total_num_groups, Vec::new());
        for_each_state(values, |row, counts| {
            let sums = &mut self.groups[group_indices[row]];
            if counts.len() > sums.len() {
                sums.resize(counts.len(), 0);
            }
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        })
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        Ok(Arc::new(lists(emit_to.take_needed(&mut self.groups))))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let column = layer(values)?;
        let rows: Vec<usize> = (0..column.len()).collect();
        let mut each = Self { width: self.width, groups: Vec::new() };
        each.add(column, &rows, opt_filter, rows.len());
        Ok(vec![Arc::new(lists(each.groups))])
    }

    fn size(&self) -> usize {
        let counts: usize = self.groups.iter().map(|counts| counts.capacity() * size_of::<i64>()).sum();
        counts + self.groups.capacity() * size_of::<Vec<i64>>()
    }
}

fn layer(values: &[ArrayRef]) -> Result<&FixedSizeBinaryArray> {
    match values.first().and_then(|values| values.as_fixed_size_binary_opt()) {
        Some(column) => Ok(column),
        None => internal_err!("expert_counts(...) was given something else than a layer column"),
    }
}

fn for_each_state(states: &[ArrayRef], mut each: impl FnMut(usize, &[i64])) -> Result<()> {
    let Some(states) = states.first().and_then(|states| states.as_list_opt::<i32>()) else {
        return internal_err!("the state of expert_counts(...) is a list of counts");
    };
    let Some(counts) = states.values().as_primitive_opt::<Int64Type>() else {
        return internal_err!("the state of expert_counts(...) is a list of counts");
    };
    for row in 0..states.len() {
        if states.is_valid(row) {
            let range = states.value_offsets()[row] as usize..states.value_offsets()[row + 1] as usize;
            each(row, &counts.values()[range]);
        }
    }
    Ok(())
}

fn count_field() -> FieldRef {
    Arc::new(Field::new("item", DataType::Int64, true))
}

fn list_type() -> DataType {
    DataType::List(count_field())
}

fn lists(counts: Vec<Vec<i64>>) -> ListArray {
    let offsets = OffsetBuffer::from_lengths(counts.iter().map(Vec::len));
    ListArray::new(count_field(), offsets, Arc::new(Int64Array::from(counts.concat())), None)
}

fn scalar(counts: Vec<i64>) -> ScalarValue {
    ScalarValue::List(Arc::new(lists(vec![counts])))
}
