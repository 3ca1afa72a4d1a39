//! vLLM 0.21: nested lists of numbers `[rows, MoE layers, top_k]`, the prompt's in the answer's `prompt_routed_experts`,
//! the completion's in each choice's `routed_experts`.
//!
//! Where they belong: the engine keeps one array per request, a row for each position that was fed to the model, and
//! cuts it at the prompt's length (`split_routed_experts` in vLLM 0.21's `routed_experts_capturer.py`). So the prompt's
//! part begins at 0 and has `prompt` rows, the completion's part begins at `prompt`, and since the last sampled token
//! is never fed it has `completion - 1` rows: one less than the `gen_len` of that version's documentation. With
//! speculative decoding a row of a rejected draft token may follow; the engine cuts at `completion` rows only. Rows of
//! positions that came from the prefix cache hold `-1`.

use bytes::Bytes;

use super::{
    Payload, PayloadError,
    narrow::{self, IdError, MAX_ID, Marks},
};
use crate::{
    rows::{self, Rows},
    shape::{IdWidth, RowShape},
    span::WireType,
};

/// Not nested lists of expert ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Something else at this place.
    #[error("at byte {at} of the nested lists: expected {expected}")]
    Expected {
        /// Byte in the lists' text.
        at: usize,
        /// What should be there.
        expected: &'static str,
    },
    /// A row with more or fewer layers than the first, or a layer with more or fewer slots.
    #[error("row {row} of the nested lists has {found} {what}: expected {expected}, as those before it")]
    Ragged {
        /// Index of the row.
        row: usize,
        /// `layers` or `slots`.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many the first row has.
        expected: usize,
    },
}

/// The width that the ids in the JSON text of nested lists need. Lists have none of their own, and the parts of one
/// answer are to have the same.
///
/// # Errors
/// As [`decode`].
pub fn width(json: &str) -> Result<IdWidth, ListError> {
    let mut highest = 0;
    walk(json, |id| highest = highest.max(id))?;
    Ok(if highest <= 255 { IdWidth::U8 } else { IdWidth::U16 })
}

/// The rows in the JSON text of nested lists, at this width or a higher one that they need; `None` for an empty list,
/// which has no shape.
///
/// # Errors
/// Where the lists are ragged, deeper or flatter than `[rows, layers, top_k]`, or hold anything but expert ids.
pub fn decode(json: &str, at_least: IdWidth) -> Result<Option<Payload>, PayloadError> {
    let (mut ids, mut lowest, mut highest) = (0_usize, 0, 0);
    let lengths = walk(json, |id| {
        ids += 1;
        lowest = lowest.min(id);
        highest = highest.max(id);
    })?;
    let Some((layers, top_k)) = lengths else { return Ok(None) };
    let shape = RowShape::new(layers as u64, top_k as u64)?;
    if lowest < -1 || highest > i64::from(MAX_ID) {
        return Err(out_of_range(json, shape)?.into());
    }
    let width = if highest <= 255 { at_least } else { IdWidth::U16 };
    // An id has two characters at least, so this is no more than the text.
    let mut bytes = Vec::with_capacity(ids * width.bytes());
    let (mut marks, mut marked) = (Marks::default(), Ok(()));
    let mut index = 0;
    let mut last_marked = None;
    walk(json, |id| {
        let row = index / shape.ids();
        if id < 0 && marked.is_ok() && last_marked != Some(row) {
            marked = marks.mark(row, index % shape.ids() / shape.top_k());
            last_marked = Some(row);
        }
        index += 1;
        let id = id.max(0) as u16;
        match width {
            IdWidth::U8 => bytes.push(id as u8),
            IdWidth::U16 => bytes.extend_from_slice(&id.to_le_bytes()),
        }
    })?;
    marked?;
    Ok(Some(narrow::finish(Bytes::from(bytes), width, WireType::Json, shape, marks.runs)?))
}

/// The rows as nested lists in JSON.
pub fn encode(rows: &Rows) -> String {
    let list = |items: &mut dyn Iterator<Item = String>| format!("[{}]", items.collect::<Vec<_>>().join(","));
    list(&mut (0..rows.len()).map(|row| {
        list(&mut (0..rows.shape().layers()).map(|layer| {
            list(&mut rows::ids(rows.layer(row, layer), rows.width()).into_iter().map(|id| id.to_string()))
        }))
    }))
}

/// Names the first id that cannot be kept.
fn out_of_range(json: &str, shape: RowShape) -> Result<IdError, ListError> {
    let (mut index, mut first) = (0, None);
    walk(json, |id| {
        if first.is_none() && !(-1..=i64::from(MAX_ID)).contains(&id) {
            first = Some(narrow::out_of_range(id.into(), index, shape));
        }
        index += 1;
    })?;
    Ok(first.unwrap_or_else(|| narrow::out_of_range(0, 0, shape)))
}

/// Visits every id in order; says the layers and slots of a row, `None` where there is no row.
fn walk(json: &str, mut visit: impl FnMut(i64)) -> Result<Option<(usize, usize)>, ListError> {
    let mut text = Text { bytes: json.as_bytes(), at: 0 };
    let mut first: Option<(usize, usize)> = None;
    text.list("a list of rows", |text, row| {
        let mut slots = first.map(|(_, slots)| slots);
        let layers = text.list("a list of layers", |text, _| {
            let found = text.list("a list of ids", |text, _| text.id().map(&mut visit))?;
            same(row, "slots", found, *slots.get_or_insert(found))
        })?;
        let (expected, _) = *first.get_or_insert((layers, slots.unwrap_or(0)));
        same(row, "layers", layers, expected)
    })?;
    text.end()?;
    Ok(first)
}

fn same(row: usize, what: &'static str, found: usize, expected: usize) -> Result<(), ListError> {
    if found == expected { Ok(()) } else { Err(ListError::Ragged { row, what, found, expected }) }
}

/// JSON of lists and whole numbers.
struct Text<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Text<'_> {
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn error(&self, expected: &'static str) -> ListError {
        ListError::Expected { at: self.at, expected }
    }

    /// Calls `each` with the index of every item; says how many there are.
    #[inline]
    fn list(
        &mut self,
        expected: &'static str,
        mut each: impl FnMut(&mut Self, usize) -> Result<(), ListError>,
    ) -> Result<usize, ListError> {
        if self.peek() != Some(b'[') {
            return Err(self.error(expected));
        }
        self.at += 1;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(0);
        }
        let mut items = 0;
        loop {
            each(self, items)?;
            items += 1;
            let next = self.peek();
            if !matches!(next, Some(b',' | b']')) {
                return Err(self.error("',' or ']'"));
            }
            self.at += 1;
            if next == Some(b']') {
                return Ok(items);
            }
        }
    }

    #[inline]
    fn id(&mut self) -> Result<i64, ListError> {
        let negative = self.peek() == Some(b'-');
        let start = self.at + usize::from(negative);
        let (mut at, mut id) = (start, 0_i64);
        while let Some(digit) = self.bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit < 10) {
            // No id has more than five digits, so one that does not fit is none, whatever it reads as.
            id = id.saturating_mul(10).saturating_add(i64::from(digit));
            at += 1;
        }
        if at == start || (at > start + 1 && self.bytes[start] == b'0') {
            return Err(self.error("an expert id, a whole number"));
        }
        self.at = at;
        Ok(if negative { -id } else { id })
    }

    fn end(&mut self) -> Result<(), ListError> {
        self.peek().map_or(Ok(()), |_| Err(self.error("nothing behind the lists")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::span::Unknown;

    fn read(json: &str) -> Payload {
        decode(json, IdWidth::U8).unwrap().unwrap()
    }

    fn refusal(json: &str) -> String {
        decode(json, IdWidth::U8).unwrap_err().to_string()
    }

    #[test]
    fn lists_are_rows_of_layers_of_ids() {
        let payload = read(" [ [[1, 2] ,[3,4]], [[5,6],[7, 300]] ] ");

        assert_eq!(payload.rows.shape(), RowShape::new(2, 2).unwrap());
        assert_eq!((payload.rows.len(), payload.rows.width()), (2, IdWidth::U16));
        assert_eq!(payload.rows.experts(1, 1), [7, 300]);
        assert_eq!(payload.wire_type, WireType::Json);
        assert_eq!(decode(" [ ] ", IdWidth::U8), Ok(None));
    }

    #[test]
    fn positions_from_the_prefix_cache_are_unknown() {
        let payload = read("[[[-1,-1],[-1,-1]],[[-1,-1],[-1,-1]],[[1,2],[3,4]],[[1,2],[3,-1]]]");

        assert_eq!(payload.unknown, [Unknown { rows: 0..2, layer: 0 }, Unknown { rows: 3..4, layer: 1 }]);
        assert_eq!(payload.rows.experts(0, 0), [0, 0]);
        assert_eq!(payload.rows.width(), IdWidth::U8);
    }

    #[test]
    fn parts_of_one_answer_can_have_one_width() {
        assert_eq!(width("[[[255]]]"), Ok(IdWidth::U8));
        assert_eq!(width("[[[256]]]"), Ok(IdWidth::U16));
        assert_eq!(decode("[[[1]]]", IdWidth::U16).unwrap().unwrap().rows.experts(0, 0), [1]);
        assert_eq!(decode("[[[1]]]", IdWidth::U16).unwrap().unwrap().rows.width(), IdWidth::U16);
    }

    #[test]
    fn what_are_no_lists_of_ids_is_refused() {
        for (json, message) in [
            ("", "at byte 0 of the nested lists: expected a list of rows"),
            ("[1]", "at byte 1 of the nested lists: expected a list of layers"),
            ("[[1]]", "at byte 2 of the nested lists: expected a list of ids"),
            ("[[[[1]]]]", "at byte 3 of the nested lists: expected an expert id, a whole number"),
            ("[[[1.5]]]", "at byte 4 of the nested lists: expected ',' or ']'"),
            ("[[[null]]]", "at byte 3 of the nested lists: expected an expert id, a whole number"),
            ("[[[01]]]", "at byte 3 of the nested lists: expected an expert id, a whole number"),
            ("[[[1]]", "at byte 6 of the nested lists: expected ',' or ']'"),
            ("[[[1]]]]", "at byte 7 of the nested lists: expected nothing behind the lists"),
            ("[[[1],[2]],[[1]]]", "row 1 of the nested lists has 1 layers: expected 2, as those before it"),
            ("[[[1],[2]],[[1],[2,3]]]", "row 1 of the nested lists has 2 slots: expected 1, as those before it"),
            ("[[]]", "0 layers: expected 1 to 1024"),
            ("[[[]]]", "top_k 0: expected 1 to 256"),
            (
                "[[[1,2],[3,4]],[[1,2],[-2,4]]]",
                "id -2 in row 1, layer 1, slot 0: expected 0 to 65534, or -1 for unknown in a signed type",
            ),
            (
                "[[[65535]]]",
                "id 65535 in row 0, layer 0, slot 0: expected 0 to 65534, or -1 for unknown in a signed type",
            ),
        ] {
            assert_eq!(refusal(json), message, "{json}");
        }
    }

    proptest! {
        #[test]
        fn what_was_sent_is_read(
            (top_k, ids) in (1..4_usize, 1..6_usize)
                .prop_flat_map(|(top_k, rows)| (Just(top_k), prop::collection::vec(0..=MAX_ID, 2 * top_k * rows)))
        ) {
            let shape = RowShape::new(2, top_k as u64).unwrap();
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let rows = Rows::new(bytes.into(), shape, IdWidth::U16).unwrap();

            let payload = decode(&encode(&rows), IdWidth::U16).unwrap().unwrap();

            prop_assert_eq!(payload.rows, rows);
        }

        #[test]
        fn no_text_is_too_odd_to_answer(json in "[\\[\\], 0-9.-]{0,60}") {
            let _ = decode(&json, IdWidth::U8);
        }
    }
}
