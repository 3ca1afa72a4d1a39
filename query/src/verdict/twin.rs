//! Two runs of the same requests, row by row: how a prefill/decode deployment is held against a colocated twin.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
};

use gatescope_routing::rows::ids;

use super::{
    Comparison, FirstDifference, LayerComparison, RequestDifference, Scope,
    rows::{RunRows, TableRows, first_run},
};
use crate::{catalog::Catalog, error::QueryError, layer_column::LayerColumn};

/// A comparison on its way: [`Comparing::next`] gives the requests that are not the same, then [`Comparing::summary`] has
/// the counts.
pub struct Comparing {
    a: RunRows,
    b: RunRows,
    /// The layers of a pair of tables.
    pairs: HashMap<(usize, usize), Vec<LayerPair>>,
    summary: Comparison,
    layers: BTreeMap<u16, LayerComparison>,
}

/// A layer in either table: its index among that table's layers.
#[derive(Debug, Clone, Copy)]
struct LayerPair {
    layer: u16,
    a: Option<(usize, LayerColumn)>,
    b: Option<(usize, LayerColumn)>,
}

impl Comparing {
    /// Starts comparing the run in scope, or the only other run, with `against`.
    ///
    /// # Errors
    /// If there is no such run, or the tables cannot be read.
    pub async fn of(catalog: &Catalog, scope: &Scope, against: &str) -> Result<Self, QueryError> {
        let run = first_run(catalog, scope.run.as_deref(), against).await?;
        Ok(Self {
            a: RunRows::of(catalog, &run, scope).await?,
            b: RunRows::of(catalog, against, scope).await?,
            pairs: HashMap::new(),
            summary: Comparison { run, against: against.to_owned(), ..Comparison::default() },
            layers: BTreeMap::new(),
        })
    }

    /// The names of the two runs, and the counts so far: of everything once `next` has given `None`.
    pub fn summary(&self) -> Comparison {
        Comparison { layers: self.layers.values().cloned().collect(), ..self.summary.clone() }
    }

    /// The next request that is not the same in both runs, by request id and choice.
    ///
    /// # Errors
    /// If the tables cannot be read.
    pub async fn next(&mut self) -> Result<Option<RequestDifference>, QueryError> {
        loop {
            let Some(request) = self.request().await? else { return Ok(None) };
            if !self.count(&request) {
                return Ok(Some(request));
            }
        }
    }

    /// Compares one request.
    async fn request(&mut self) -> Result<Option<RequestDifference>, QueryError> {
        let first = match (self.a.current(), self.b.current()) {
            (None, None) => return Ok(None),
            (Some(a), Some(b)) if b.compare(a) == Ordering::Less => b,
            (Some(a), _) => a,
            (None, Some(b)) => b,
        };
        let mut request = RequestDifference {
            request_id: first.request_id().to_owned(),
            choice: first.choice(),
            rows: 0,
            differing: 0,
            differing_sets: 0,
            only_a: 0,
            only_b: 0,
            first: None,
        };
        loop {
            let mine = |rows: &&TableRows| rows.request_id() == request.request_id && rows.choice() == request.choice;
            let order = match (self.a.current().filter(mine), self.b.current().filter(mine)) {
                (None, None) => return Ok(Some(request)),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => {
                    let order = a.compare(b);
                    if order == Ordering::Equal {
                        let pairs = self.pairs.entry((a.table, b.table)).or_insert_with(|| pair(a, b));
                        compare(a, b, pairs, &mut request, &mut self.layers);
                    }
                    order
                }
            };
            request.only_a += u64::from(order == Ordering::Less);
            request.only_b += u64::from(order == Ordering::Greater);
            if order != Ordering::Greater {
                self.a.advance().await?;
            }
            if order != Ordering::Less {
                self.b.advance().await?;
            }
        }
    }

    /// Adds a request to the counts; says whether it is the same in both runs.
    fn count(&mut self, request: &RequestDifference) -> bool {
        let counts = &mut self.summary;
        let both = request.rows > 0 || (request.only_a > 0 && request.only_b > 0);
        if !both {
            counts.only_a += u64::from(request.only_a > 0);
            counts.only_b += u64::from(request.only_b > 0);
            return false;
        }
        let identical = request.differing == 0 && request.only_a == 0 && request.only_b == 0;
        counts.requests += 1;
        counts.identical += u64::from(identical);
        counts.differing += u64::from(!identical);
        counts.rows += request.rows;
        counts.differing_rows += request.differing;
        counts.rows_only_a += request.only_a;
        counts.rows_only_b += request.only_b;
        identical
    }
}

fn pair(a: &TableRows, b: &TableRows) -> Vec<LayerPair> {
    let mut pairs: BTreeMap<u16, LayerPair> = BTreeMap::new();
    let none = |layer| LayerPair { layer, a: None, b: None };
    for (index, &column) in a.layers.iter().enumerate() {
        pairs.entry(column.layer).or_insert_with(|| none(column.layer)).a = Some((index, column));
    }
    for (index, &column) in b.layers.iter().enumerate() {
        pairs.entry(column.layer).or_insert_with(|| none(column.layer)).b = Some((index, column));
    }
    pairs.into_values().collect()
}

fn compare(
    a: &TableRows,
    b: &TableRows,
    pairs: &[LayerPair],
    request: &mut RequestDifference,
    layers: &mut BTreeMap<u16, LayerComparison>,
) {
    let (mut differs, mut sets_differ) = (false, false);
    for pair in pairs {
        let counts =
            layers.entry(pair.layer).or_insert_with(|| LayerComparison { layer: pair.layer, ..Default::default() });
        counts.rows += 1;
        let of = |rows: &TableRows, side: Option<(usize, LayerColumn)>| {
            side.map(|(index, column)| ids(rows.layer(index), column.width))
        };
        if let (Some((i, of_a)), Some((j, of_b))) = (pair.a, pair.b)
            && of_a.width == of_b.width
            && a.layer(i) == b.layer(j)
        {
            continue;
        }
        // Tables of other widths, or without the layer: ids are what counts.
        let (ids_a, ids_b) = (of(a, pair.a), of(b, pair.b));
        if ids_a == ids_b {
            continue;
        }
        let other_sets = sorted(&ids_a) != sorted(&ids_b);
        counts.differing += 1;
        counts.differing_sets += u64::from(other_sets);
        differs = true;
        sets_differ |= other_sets;
        if request.first.is_none() {
            request.first = Some(FirstDifference { position: a.position(), layer: pair.layer, a: ids_a, b: ids_b });
        }
    }
    request.rows += 1;
    request.differing += u64::from(differs);
    request.differing_sets += u64::from(sets_differ);
}

fn sorted(ids: &Option<Vec<u16>>) -> Option<Vec<u16>> {
    let mut ids = ids.clone()?;
    ids.sort_unstable();
    Some(ids)
}
