//! Aligned columns. Widths come from the first rows; after them the table goes on with those widths, so that a long answer
//! needs no more memory than a short one. A value that is wider than its column pushes its row to the right.

use std::io::{self, BufWriter, Write};

use arrow::{array::RecordBatch, datatypes::SchemaRef};

use super::{RowWriter, text::formatters};
use crate::error::QueryError;

/// Rows that column widths are taken from.
const MEASURED_ROWS: usize = 4096;
/// Bytes of text that may be held to measure them.
const MEASURED_BYTES: usize = 4 << 20;

pub(super) struct Table<W: Write> {
    output: BufWriter<W>,
    schema: SchemaRef,
    right: Vec<bool>,
    widths: Vec<usize>,
    /// Rows not yet written: the widths are still open.
    held: Option<Held>,
}

#[derive(Default)]
struct Held {
    rows: Vec<Vec<String>>,
    bytes: usize,
}

impl<W: Write> Table<W> {
    pub(super) fn new(schema: SchemaRef, output: W) -> Self {
        let right = schema.fields().iter().map(|field| field.data_type().is_numeric()).collect();
        let widths = schema.fields().iter().map(|field| width(field.name())).collect();
        Self { output: BufWriter::new(output), schema, right, widths, held: Some(Held::default()) }
    }

    fn row(&mut self, cells: Vec<String>) -> io::Result<()> {
        match &mut self.held {
            Some(held) => {
                for (widest, cell) in self.widths.iter_mut().zip(&cells) {
                    *widest = (*widest).max(width(cell));
                }
                held.bytes += cells.iter().map(String::len).sum::<usize>();
                held.rows.push(cells);
                if held.rows.len() >= MEASURED_ROWS || held.bytes >= MEASURED_BYTES { self.release() } else { Ok(()) }
            }
            None => self.line(&cells),
        }
    }

    /// Writes the header and what is held; from here on rows pass through.
    fn release(&mut self) -> io::Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let names: Vec<String> = self.schema.fields().iter().map(|field| field.name().clone()).collect();
        self.line(&names)?;
        let rule: Vec<String> = self.widths.iter().map(|&width| "-".repeat(width)).collect();
        writeln!(self.output, "{}", rule.join("  "))?;
        held.rows.iter().try_for_each(|row| self.line(row))
    }

    fn line(&mut self, cells: &[String]) -> io::Result<()> {
        let mut line = String::new();
        for (i, cell) in cells.iter().enumerate() {
            let padding = " ".repeat(self.widths[i].saturating_sub(width(cell)));
            let gap = if i == 0 { "" } else { "  " };
            match self.right[i] {
                true => line.extend([gap, &padding, cell]),
                false => line.extend([gap, cell, &padding]),
            }
        }
        writeln!(self.output, "{}", line.trim_end())
    }
}

impl<W: Write> RowWriter for Table<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), QueryError> {
        let columns = formatters(batch).map_err(|error| QueryError::Query(error.to_string()))?;
        for row in 0..batch.num_rows() {
            self.row(columns.iter().map(|column| one_line(&column.value(row).to_string())).collect())?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), QueryError> {
        self.release()?;
        Ok(self.output.flush()?)
    }
}

/// Characters, which is what terminals align by for the text that occurs here.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// A row is a line, whatever a request id contains; control characters never reach the terminal.
fn one_line(text: &str) -> String {
    match text.contains(char::is_control) {
        true => {
            text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
        }
        false => text.to_owned(),
    }
}
