//! How evenly tokens are spread over experts and ranks: the aggregate `expert_balance` and the table function `balance`.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, Int64Array, ListArray},
    buffer::OffsetBuffer,
    compute::cast,
    datatypes::{DataType, Field, FieldRef, Fields, Int64Type},
};
use datafusion::{
    common::{Result, ScalarValue, exec_err, scalar::ScalarStructBuilder},
    logical_expr::{
        Accumulator, AggregateUDFImpl, Signature, TypeSignature, Volatility,
        function::{AccumulatorArgs, StateFieldsArgs},
        utils::format_state_name,
    },
};
use gatescope_routing::balance::{Balance, rank_loads};

/// Ids are of 16 bits.
const MOST_EXPERTS: i64 = 1 << 16;
/// What is said of a layer. The names of ranks are NULL where no number of ranks was given.
const FIELDS: [(&str, DataType); 18] = [
    ("tokens", DataType::Int64),
    ("experts", DataType::Int64),
    ("hottest", DataType::Int64),
    ("max", DataType::Int64),
    ("mean", DataType::Float64),
    ("max_over_mean", DataType::Float64),
    ("mean_over_max", DataType::Float64),
    ("variation", DataType::Float64),
    ("gini", DataType::Float64),
    ("entropy", DataType::Float64),
    ("normalized_entropy", DataType::Float64),
    ("dead", DataType::Int64),
    ("top_share", DataType::Float64),
    ("ranks", DataType::Int64),
    ("hottest_rank", DataType::Int64),
    ("rank_max", DataType::Int64),
    ("rank_max_over_mean", DataType::Float64),
    ("rank_mean_over_max", DataType::Float64),
];

/// The columns that the aggregate makes.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|(name, _)| *name)
}

fn fields() -> Fields {
    FIELDS.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect()
}

/// `expert_balance(expert, tokens [, experts [, ranks]])`: a struct. Without a number of experts it is the highest id and one.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ExpertBalance {
    signature: Signature,
}

impl ExpertBalance {
    pub(crate) fn new() -> Self {
        let numbers = |count| TypeSignature::Exact(vec![DataType::Int64; count]);
        Self { signature: Signature::one_of((2..=4).map(numbers).collect(), Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for ExpertBalance {
    fn name(&self) -> &str {
        "expert_balance"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Struct(fields()))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |name: &str, data_type| Arc::new(Field::new(format_state_name(args.name, name), data_type, false));
        Ok(vec![field("counts", list_type()), field("experts", DataType::Int64), field("ranks", DataType::Int64)])
    }

    fn accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Counts::default()))
    }
}

fn list_type() -> DataType {
    DataType::List(element())
}

fn element() -> FieldRef {
    Arc::new(Field::new("item", DataType::Int64, true))
}

/// Assignments by expert.
#[derive(Debug, Default)]
struct Counts {
    counts: Vec<u64>,
    experts: i64,
    ranks: i64,
}

impl Counts {
    fn add(&mut self, expert: usize, tokens: u64) {
        if expert >= self.counts.len() {
            self.counts.resize(expert + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(expert) {
            *count = count.saturating_add(tokens);
        }
    }

    fn told(&mut self, experts: i64, ranks: i64) -> Result<()> {
        if experts > MOST_EXPERTS || ranks > MOST_EXPERTS {
            return exec_err!("expert_balance(...): expected {MOST_EXPERTS} experts and ranks at most");
        }
        self.experts = self.experts.max(experts);
        self.ranks = self.ranks.max(ranks);
        Ok(())
    }
}

fn number(array: &Int64Array, row: usize) -> i64 {
    if array.is_null(row) { 0 } else { array.value(row) }
}

impl Accumulator for Counts {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let columns =
            values.iter().map(|values| Ok(cast(values, &DataType::Int64)?.as_primitive::<Int64Type>().clone()));
        let columns = columns.collect::<Result<Vec<Int64Array>>>()?;
        let [expert, tokens, rest @ ..] = columns.as_slice() else { return Ok(()) };
        for row in 0..expert.len() {
            let told = |index: usize| rest.get(index).map_or(0, |column| number(column, row));
            self.told(told(0), told(1))?;
            if expert.is_null(row) || tokens.is_null(row) {
                continue;
            }
            let (expert, tokens) = (expert.value(row), tokens.value(row));
            if !(0..MOST_EXPERTS).contains(&expert) || tokens < 0 {
                return exec_err!("expert_balance(...): expert {expert} with {tokens} tokens");
            }
            self.add(expert as usize, tokens as u64);
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [counts, experts, ranks] = states else { return Ok(()) };
        let (counts, experts, ranks) =
            (counts.as_list::<i32>(), experts.as_primitive::<Int64Type>(), ranks.as_primitive::<Int64Type>());
        for row in 0..counts.len() {
            self.told(number(experts, row), number(ranks, row))?;
            let counts = counts.value(row);
            for (expert, tokens) in counts.as_primitive::<Int64Type>().values().iter().enumerate() {
                self.add(expert, *tokens as u64);
            }
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let counts: Int64Array = self.counts.iter().map(|&count| count as i64).collect::<Vec<_>>().into();
        let offsets = OffsetBuffer::from_lengths([counts.len()]);
        let list = ListArray::new(element(), offsets, Arc::new(counts), None);
        Ok(vec![
            ScalarValue::List(Arc::new(list)),
            ScalarValue::Int64(Some(self.experts)),
            ScalarValue::Int64(Some(self.ranks)),
        ])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.counts.resize(self.counts.len().max(self.experts.max(0) as usize), 0);
        let Some(of_experts) = Balance::of(&self.counts) else {
            return ScalarValue::try_from(&DataType::Struct(fields()));
        };
        let of_ranks = (self.ranks > 0).then(|| Balance::of(&rank_loads(&self.counts, self.ranks as usize))).flatten();
        let whole = |number: Option<u64>| ScalarValue::Int64(number.map(|number| number as i64));
        let real = |number: Option<f64>| ScalarValue::Float64(number);
        let values = [
            whole(Some(of_experts.total)),
            whole(Some(of_experts.parts as u64)),
            whole(Some(of_experts.hottest as u64)),
            whole(Some(of_experts.max)),
            real(Some(of_experts.total as f64 / of_experts.parts as f64)),
            real(Some(of_experts.max_over_mean)),
            real(Some(of_experts.mean_over_max)),
            real(Some(of_experts.variation)),
            real(Some(of_experts.gini)),
            real(Some(of_experts.entropy)),
            real(Some(of_experts.normalized_entropy)),
            whole(Some(of_experts.dead as u64)),
            real(Some(of_experts.top_share)),
            whole(of_ranks.map(|ranks| ranks.parts as u64)),
            whole(of_ranks.map(|ranks| ranks.hottest as u64)),
            whole(of_ranks.map(|ranks| ranks.max)),
            real(of_ranks.map(|ranks| ranks.max_over_mean)),
            real(of_ranks.map(|ranks| ranks.mean_over_max)),
        ];
        let mut built = ScalarStructBuilder::new();
        for (field, value) in fields().iter().zip(values) {
            built = built.with_scalar(Arc::clone(field), value);
        }
        built.build()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * size_of::<u64>()
    }
}
