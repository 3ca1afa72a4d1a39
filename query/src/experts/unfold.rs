//! Unfolds rows into a row per layer or per slot, a bounded batch at a time.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use arrow::{
    array::{
        Array, ArrayRef, AsArray, FixedSizeBinaryArray, Int32Array, ListArray, RecordBatch, RecordBatchOptions,
        UInt32Array,
    },
    buffer::OffsetBuffer,
    compute::take,
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use datafusion::{
    common::{Result, internal_err, tree_node::TreeNodeRecursion},
    execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext},
    physical_expr::{EquivalenceProperties, PhysicalExpr},
    physical_plan::{
        ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
        ReplaceChildrenOptions,
        execution_plan::{Boundedness, EmissionType},
        metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput},
    },
};
use futures::{Stream, StreamExt};
use gatescope_routing::{rows::ids, shape::IdWidth};

use super::{Column, Grain, unfolded_schema};
use crate::layer_column::LayerColumn;

/// Rows of an output batch, at most: what an unfolding holds does not grow with its input.
const OUTPUT_ROWS: usize = 8192;

/// Turns each row of the input into `[layers]` or `[layers, top_k]` rows, by layer and slot.
#[derive(Debug)]
pub(super) struct UnfoldExec {
    input: Arc<dyn ExecutionPlan>,
    layout: Arc<Layout>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// Where in the input the output comes from.
#[derive(Debug)]
struct Layout {
    grain: Grain,
    columns: Vec<Column>,
    /// Index of each key column in the input, in the order of `columns`.
    keys: Vec<usize>,
    /// The layers, and the index of their ids in the input where they are read.
    layers: Vec<(LayerColumn, Option<usize>)>,
    schema: SchemaRef,
}

impl UnfoldExec {
    /// Unfolds these layers of the input; their columns are called in it as in `table`, if ids are read at all.
    pub(super) fn try_new(
        input: Arc<dyn ExecutionPlan>,
        grain: Grain,
        columns: Vec<Column>,
        layers: Vec<LayerColumn>,
        table: Option<&Schema>,
    ) -> Result<Self> {
        let source = input.schema();
        let keys = columns.iter().filter_map(|column| match column {
            Column::Key(name) => Some(source.index_of(name)),
            _ => None,
        });
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let place = |layer: &LayerColumn| -> Result<Option<usize>> {
            if table.is_none() {
                return Ok(None);
            }
            match source.fields().iter().position(|field| LayerColumn::of(field) == Some(*layer)) {
                Some(index) => Ok(Some(index)),
                None => internal_err!("layer {} is not in the input of an unfolding", layer.layer),
            }
        };
        let layers = layers.iter().map(|layer| Ok((*layer, place(layer)?))).collect::<Result<Vec<_>>>()?;
        let schema = unfolded_schema(&columns);
        let layout = Arc::new(Layout { grain, columns, keys, layers, schema });
        Ok(Self::over(input, layout))
    }

    fn over(input: Arc<dyn ExecutionPlan>, layout: Arc<Layout>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(layout.schema.clone()),
            datafusion::physical_plan::Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self { input, layout, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl DisplayAs for UnfoldExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let columns: Vec<&str> = self.layout.schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "UnfoldExec: layers={}, columns=[{}]", self.layout.layers.len(), columns.join(", "))
    }
}

impl ExecutionPlan for UnfoldExec {
    fn name(&self) -> &str {
        "UnfoldExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.pop()) {
            (Some(input), None) => Ok(Arc::new(Self::over(input, self.layout.clone()))),
            _ => internal_err!("an unfolding has one input"),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Ok(Box::pin(Unfolding {
            input: self.input.execute(partition, context)?,
            layout: self.layout.clone(),
            batch: None,
            metrics: BaselineMetrics::new(&self.metrics, partition),
        }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

struct Unfolding {
    input: SendableRecordBatchStream,
    layout: Arc<Layout>,
    /// The batch being unfolded and the next of its `rows * layers` groups.
    batch: Option<(RecordBatch, usize)>,
    metrics: BaselineMetrics,
}

impl Stream for Unfolding {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some((batch, next)) = &mut this.batch {
                let timer = this.metrics.elapsed_compute().timer();
                let output = this.layout.unfold(batch, next);
                timer.done();
                match output {
                    Ok(Some(output)) => return Poll::Ready(Some(Ok(output.record_output(&this.metrics)))),
                    Ok(None) => this.batch = None,
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
            }
            match ready!(this.input.poll_next_unpin(context)) {
                Some(Ok(batch)) => this.batch = Some((batch, 0)),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl RecordBatchStream for Unfolding {
    fn schema(&self) -> SchemaRef {
        self.layout.schema.clone()
    }
}

/// The layers of a piece of the input: which row, and which of the unfolded layers.
struct Groups {
    rows: Vec<u32>,
    layers: Vec<usize>,
    /// Output rows of each group.
    lengths: Vec<usize>,
    total: usize,
}

impl Layout {
    /// The next output batch of an input batch; `None` where it is at its end.
    fn unfold(&self, batch: &RecordBatch, next: &mut usize) -> Result<Option<RecordBatch>> {
        let ids = self.layers.iter().map(|(_, index)| match index {
            Some(index) => match batch.column(*index).as_fixed_size_binary_opt() {
                Some(column) => Ok(Some(column)),
                None => internal_err!("a layer column is of type {}", batch.column(*index).data_type()),
            },
            None => Ok(None),
        });
        let ids = ids.collect::<Result<Vec<_>>>()?;
        let groups = self.groups(batch.num_rows(), &ids, next);
        if groups.total == 0 {
            return Ok(None);
        }
        let repeated = OnceRepeated::default();
        let mut keys = self.keys.iter();
        let columns = self.columns.iter().map(|column| -> Result<ArrayRef> {
            Ok(match column {
                Column::Key(_) => match keys.next() {
                    Some(&key) => take(batch.column(key), repeated.rows(&groups), None)?,
                    None => return internal_err!("more key columns than were planned"),
                },
                Column::Layer => Arc::new(self.layer_numbers(&groups)),
                Column::Slot => Arc::new(slots(&groups)),
                Column::Expert => Arc::new(self.experts(&groups, &ids)),
                Column::Experts => Arc::new(self.lists(&groups, &ids)),
            })
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(groups.total));
        Ok(Some(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?))
    }

    fn groups(&self, rows: usize, ids: &[Option<&FixedSizeBinaryArray>], next: &mut usize) -> Groups {
        let mut groups = Groups { rows: Vec::new(), layers: Vec::new(), lengths: Vec::new(), total: 0 };
        while *next < rows * self.layers.len() {
            let (row, layer) = (*next / self.layers.len(), *next % self.layers.len());
            let length = match self.grain {
                Grain::Slot => usize::from(self.layers[layer].0.top_k),
                Grain::Layer => 1,
            };
            if groups.total + length > OUTPUT_ROWS {
                break;
            }
            *next += 1;
            if ids[layer].is_some_and(|ids| ids.is_null(row)) {
                continue;
            }
            groups.rows.push(row as u32);
            groups.layers.push(layer);
            groups.lengths.push(length);
            groups.total += length;
        }
        groups
    }

    fn layer_numbers(&self, groups: &Groups) -> Int32Array {
        let mut numbers = Vec::with_capacity(groups.total);
        for (&layer, &length) in groups.layers.iter().zip(&groups.lengths) {
            numbers.extend(std::iter::repeat_n(i32::from(self.layers[layer].0.layer), length));
        }
        numbers.into()
    }

    fn experts(&self, groups: &Groups, ids: &[Option<&FixedSizeBinaryArray>]) -> Int32Array {
        let mut experts = Vec::with_capacity(groups.total);
        for (&row, &layer) in groups.rows.iter().zip(&groups.layers) {
            let Some(column) = ids[layer] else { continue };
            push_ids(column.value(row as usize), self.layers[layer].0.width, &mut experts);
        }
        experts.into()
    }

    fn lists(&self, groups: &Groups, ids: &[Option<&FixedSizeBinaryArray>]) -> ListArray {
        let lengths = groups.layers.iter().map(|&layer| usize::from(self.layers[layer].0.top_k));
        let item = Arc::new(Field::new("item", DataType::Int32, true));
        ListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::new(self.experts(groups, ids)), None)
    }
}

fn push_ids(row: &[u8], width: IdWidth, experts: &mut Vec<i32>) {
    match width {
        IdWidth::U8 => experts.extend(row.iter().map(|&id| i32::from(id))),
        IdWidth::U16 => experts.extend(ids(row, width).into_iter().map(i32::from)),
    }
}

fn slots(groups: &Groups) -> Int32Array {
    let mut slots = Vec::with_capacity(groups.total);
    for &length in &groups.lengths {
        slots.extend(0..length as i32);
    }
    slots.into()
}

/// The input row of each output row, made when the first key column asks for it.
#[derive(Default)]
struct OnceRepeated(std::cell::OnceCell<UInt32Array>);

impl OnceRepeated {
    fn rows(&self, groups: &Groups) -> &UInt32Array {
        self.0.get_or_init(|| {
            let mut rows = Vec::with_capacity(groups.total);
            for (&row, &length) in groups.rows.iter().zip(&groups.lengths) {
                rows.extend(std::iter::repeat_n(row, length));
            }
            rows.into()
        })
    }
}
