//! Whether layers that disagree have each other's rows: replay lists bound in another order, a dense layer dropped on one side, a
//! draft model's layer counted in.

use crate::rows::Rows;

/// Rows looked at.
const LOOKED_AT: usize = 32;
/// Ids that must agree in each layer that is said to have moved: below, they may agree by chance.
const ENOUGH_IDS: usize = 4;

/// Differing rows of two sources, the accepted one's and the other's.
#[derive(Debug, Default)]
pub(super) struct LayerMoves {
    rows: Vec<(Rows, Rows)>,
}

impl LayerMoves {
    /// Takes a row in which the two differ.
    pub(super) fn see(&mut self, accepted: &Rows, other: &Rows, row: usize) {
        if self.rows.len() < LOOKED_AT {
            self.rows.push((accepted.slice(row..row + 1), other.slice(row..row + 1)));
        }
    }

    /// `(layer, whose rows it has)` of the other source, where that explains all layers that differ in all rows seen: all but
    /// those at the ends, whose counterpart may lie outside.
    pub(super) fn found(&self) -> Option<Vec<(usize, usize)>> {
        let (first, _) = self.rows.first()?;
        let shape = first.shape();
        if self.rows.len() * shape.top_k() < ENOUGH_IDS {
            return None;
        }
        let differs = |layer: usize| self.rows.iter().any(|(a, b)| a.layer(0, layer) != b.layer(0, layer));
        let has = |layer: usize, of: usize| self.rows.iter().all(|(a, b)| b.layer(0, layer) == a.layer(0, of));
        let differing: Vec<usize> = (0..shape.layers()).filter(|&layer| differs(layer)).collect();
        let mut moves = Vec::new();
        for &layer in &differing {
            let mut of = (0..shape.layers()).filter(|&of| of != layer && has(layer, of));
            match (of.next(), of.next()) {
                (Some(of), None) => moves.push((layer, of)),
                // Its counterpart may be none of the layers; two alike say nothing.
                (None, _) => {}
                (Some(_), Some(_)) => return None,
            }
        }
        let unexplained = differing.len() - moves.len();
        let mut sources: Vec<usize> = moves.iter().map(|(_, of)| *of).collect();
        sources.sort_unstable();
        sources.dedup();
        let distinct = sources.len() == moves.len();
        (moves.len() >= 2 && distinct && unexplained <= 2 && unexplained < moves.len()).then_some(moves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{IdWidth, RowShape};

    fn row(lists: &[[u8; 4]]) -> Rows {
        let shape = RowShape::new(lists.len() as u64, 4).unwrap();
        Rows::new(lists.concat().into(), shape, IdWidth::U8).unwrap()
    }

    fn found(accepted: &[[u8; 4]], other: &[[u8; 4]]) -> Option<Vec<(usize, usize)>> {
        let mut moves = LayerMoves::default();
        moves.see(&row(accepted), &row(other), 0);
        moves.found()
    }

    const A: [u8; 4] = [1, 2, 3, 4];
    const B: [u8; 4] = [5, 6, 7, 8];
    const C: [u8; 4] = [9, 10, 11, 12];
    const D: [u8; 4] = [13, 14, 15, 16];

    #[test]
    fn swapped_and_shifted_layers_are_found() {
        assert_eq!(found(&[A, B, C, D], &[A, C, B, D]), Some(vec![(1, 2), (2, 1)]));
        assert_eq!(found(&[A, B, C, D], &[B, C, D, [0; 4]]), Some(vec![(0, 1), (1, 2), (2, 3)]));
    }

    #[test]
    fn other_experts_are_no_move() {
        assert_eq!(found(&[A, B, C, D], &[A, C, D, B].map(|list| list.map(|id| id + 20))), None);
        assert_eq!(found(&[A, B, C, D], &[B, [30, 31, 32, 33], [34, 35, 36, 37], [38, 39, 40, 41]]), None);
        assert_eq!(found(&[A, A, C, D], &[C, A, A, D]), None, "two layers alike leave it open");
    }
}
