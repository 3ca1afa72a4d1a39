//! Joins that let others run: a join of two large sides makes rows for hours without asking its inputs for more, which
//! is where plans yield otherwise; its time limit would never be looked at.

use std::sync::Arc;

use datafusion::{
    common::{
        Result,
        config::ConfigOptions,
        tree_node::{Transformed, TransformedResult, TreeNode},
    },
    physical_optimizer::PhysicalOptimizerRule,
    physical_plan::{
        ExecutionPlan,
        coop::CooperativeExec,
        joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec},
        unnest::UnnestExec,
    },
};

/// Lets every join yield after a bounded number of batches.
#[derive(Debug, Default)]
pub(crate) struct YieldingJoins;

impl PhysicalOptimizerRule for YieldingJoins {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| {
            let multiplies = plan.is::<CrossJoinExec>()
                || plan.is::<HashJoinExec>()
                || plan.is::<NestedLoopJoinExec>()
                || plan.is::<SortMergeJoinExec>()
                || plan.is::<UnnestExec>();
            Ok(if multiplies {
                Transformed::yes(Arc::new(CooperativeExec::new(plan)) as Arc<dyn ExecutionPlan>)
            } else {
                Transformed::no(plan)
            })
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "yielding_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
