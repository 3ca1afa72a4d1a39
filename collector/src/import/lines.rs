//! Lines out of blocks: each a slice of the block that it was read into.

use std::{
    io::{self, Read},
    ops::{Range, RangeInclusive},
    sync::Arc,
};

use bytes::Bytes;

use super::blocks::{Block, Blocks};

/// Sizes of a block for lines that fit: several lines each, because the line that straddles two blocks is copied, and
/// several blocks within the budget, because the stages work on different ones.
const BLOCK_BYTES: RangeInclusive<usize> = 2 << 20..=16 << 20;
/// Room for the end of a line that is as long as it may be.
const END_BYTES: usize = 64 << 10;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A line, without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// Its number in the file, from 1.
    pub(super) number: u64,
    /// Where its bytes begin in the file.
    pub(super) offset: u64,
    pub(super) content: Content,
}

/// What is known of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// Its bytes.
    Whole(Bytes),
    /// It has this many bytes, more than allowed, and was skipped.
    TooLong(u64),
}

/// Reads a file's lines, a block at a time. Blank lines are left out (and counted), a byte order mark is not part of
/// the first line, `\r\n` ends a line like `\n`, and the last line needs no end.
pub(super) struct Lines<R> {
    source: R,
    blocks: Arc<Blocks>,
    max_line: usize,
    /// The beginning of a line whose end was not read yet.
    begun: Bytes,
    /// Size of the block that `begun` keeps out of the pool.
    begun_in: usize,
    /// Bytes seen of a line that is too long, while its end is looked for.
    skipped: Option<u64>,
    /// Where the next block begins in the file: at the first byte of `begun`.
    offset: u64,
    /// Number of the line at `offset`.
    number: u64,
    /// The longest line so far.
    longest: usize,
    ended: bool,
}

impl<R: Read> Lines<R> {
    /// The lines of `source`; those above `max_line` bytes are skipped.
    pub(super) fn new(source: R, blocks: Arc<Blocks>, max_line: usize) -> Self {
        Self {
            source,
            blocks,
            max_line,
            begun: Bytes::new(),
            begun_in: 0,
            skipped: None,
            offset: 0,
            number: 1,
            longest: 0,
            ended: false,
        }
    }

    /// Bytes read of the source.
    pub(super) fn position(&self) -> u64 {
        self.offset + self.begun.len() as u64
    }

    /// The lines that end in the next block (none, where a line spans all of it); `None` after the last line and once
    /// the blocks are closed.
    ///
    /// # Errors
    /// Where the source cannot be read. There are no more lines then.
    pub(super) fn next_block(&mut self) -> io::Result<Option<Vec<Line>>> {
        if self.ended {
            return Ok(None);
        }
        let Some(mut block) = self.blocks.take(self.block_size(), self.begun_in) else {
            self.ended = true;
            return Ok(None);
        };
        let begun = std::mem::take(&mut self.begun);
        block[..begun.len()].copy_from_slice(&begun);
        let searched = begun.len();
        drop(begun);
        let filled = self.fill(&mut block, searched)?;
        let ends: Vec<usize> = memchr::memchr_iter(b'\n', &block[searched..filled]).map(|at| searched + at).collect();
        let size = block.len();
        let lines = self.cut(&block.share().slice(..filled), &ends);
        self.begun_in = if self.begun.is_empty() { 0 } else { size };
        Ok(Some(lines))
    }

    fn block_size(&self) -> usize {
        let usual = self.longest.saturating_mul(4).clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
        let begun = self.begun.len();
        usual.max(begun.saturating_mul(2).min(self.max_line.saturating_add(END_BYTES))).max(begun + 1)
    }

    /// Reads until the block is full or the source at its end; says how far the block is filled.
    fn fill(&mut self, block: &mut Block, mut filled: usize) -> io::Result<usize> {
        while filled < block.len() {
            match self.source.read(&mut block[filled..]) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = true;
                    return Err(error);
                }
            }
        }
        Ok(filled)
    }

    fn cut(&mut self, block: &Bytes, ends: &[usize]) -> Vec<Line> {
        let mut lines = Vec::with_capacity(ends.len() + 1);
        let mut start = 0;
        for &end in ends {
            lines.extend(self.line(block, start..end));
            self.number += 1;
            start = end + 1;
        }
        if self.ended {
            lines.extend(self.line(block, start..block.len()));
            start = block.len();
        } else if self.skipped.is_some() || block.len() - start > self.max_line {
            *self.skipped.get_or_insert(0) += (block.len() - start) as u64;
            start = block.len();
        }
        self.begun = block.slice(start..);
        self.longest = self.longest.max(self.begun.len());
        self.offset += start as u64;
        lines
    }

    fn line(&mut self, block: &Bytes, range: Range<usize>) -> Option<Line> {
        let number = self.number;
        let mut offset = self.offset + range.start as u64;
        if let Some(skipped) = self.skipped.take() {
            let content = Content::TooLong(skipped + range.len() as u64);
            return Some(Line { number, offset: offset - skipped, content });
        }
        if range.len() > self.max_line {
            return Some(Line { number, offset, content: Content::TooLong(range.len() as u64) });
        }
        self.longest = self.longest.max(range.len());
        let mut bytes = block.slice(range);
        if offset == 0 && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes = bytes.slice(BYTE_ORDER_MARK.len()..);
            offset += BYTE_ORDER_MARK.len() as u64;
        }
        if bytes.ends_with(b"\r") {
            bytes.truncate(bytes.len() - 1);
        }
        (!bytes.trim_ascii_start().is_empty()).then_some(Line { number, offset, content: Content::Whole(bytes) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives at most `step` bytes a read, as a pipe does.
    struct Trickle<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.step.min(buffer.len()).min(self.bytes.len());
            buffer[..count].copy_from_slice(&self.bytes[..count]);
            self.bytes = &self.bytes[count..];
            Ok(count)
        }
    }

    fn lines_of(bytes: &[u8], max_line: usize) -> Vec<Line> {
        let mut lines = Lines::new(bytes, Blocks::new(64 << 20), max_line);
        let mut all = Vec::new();
        while let Some(block) = lines.next_block().unwrap() {
            all.extend(block);
        }
        assert_eq!(lines.position(), bytes.len() as u64);
        all
    }

    fn whole(number: u64, offset: u64, bytes: &'static [u8]) -> Line {
        Line { number, offset, content: Content::Whole(Bytes::from_static(bytes)) }
    }

    #[test]
    fn marks_blanks_and_line_ends_are_not_part_of_lines() {
        // given
        let file = b"\xef\xbb\xbfone\r\n\n  \t\r\ntwo\nthree";

        // when
        let lines = lines_of(file, 100);

        // then
        assert_eq!(lines, [whole(1, 3, b"one"), whole(4, 14, b"two"), whole(5, 18, b"three")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_named_and_the_next_one_read() {
        // given
        let file = b"ok\n123456789\nok";

        // when
        let lines = lines_of(file, 8);

        // then
        let long = Line { number: 2, offset: 3, content: Content::TooLong(9) };
        assert_eq!(lines, [whole(1, 0, b"ok"), long, whole(3, 13, b"ok")]);
    }

    #[test]
    fn a_line_longer_than_the_budget_is_skipped_without_being_held() {
        // given
        let blocks = Blocks::new(8 << 20);
        let source = io::repeat(b'x').take(100 << 20).chain(&b"\nok\n"[..]);
        let mut lines = Lines::new(source, blocks, 1 << 20);

        // when
        let mut all = Vec::new();
        while let Some(block) = lines.next_block().unwrap() {
            all.extend(block);
        }

        // then
        let long = Line { number: 1, offset: 0, content: Content::TooLong(100 << 20) };
        assert_eq!(all, [long, whole(2, (100 << 20) + 1, b"ok")]);
    }

    #[test]
    fn a_line_longer_than_a_block_is_whole() {
        // given
        let mut file = vec![b'a'; 40 << 20];
        file.extend_from_slice(b"\nb");

        // when
        let lines = lines_of(&file, 64 << 20);

        // then
        assert!(matches!(&lines[0].content, Content::Whole(bytes) if bytes.len() == 40 << 20));
        assert_eq!(lines[1], whole(2, (40 << 20) + 1, b"b"));
    }

    proptest! {
        #[test]
        fn lines_are_the_files_own(
            pieces in prop::collection::vec(prop::collection::vec(prop::sample::select(&b"ab\r \xff"[..]), 0..20), 0..40),
            last_end in any::<bool>(),
            step in 1usize..50,
        ) {
            // given
            let mut file = pieces.join(&b'\n');
            if last_end { file.push(b'\n') }
            let mut lines = Lines::new(Trickle { bytes: &file, step }, Blocks::new(64 << 20), 12);

            // when
            let mut all = Vec::new();
            while let Some(block) = lines.next_block().unwrap() { all.extend(block) }

            // then
            let mut rest = all.iter();
            for (index, piece) in file.split(|&byte| byte == b'\n').enumerate() {
                let text = piece.strip_suffix(b"\r").unwrap_or(piece);
                if piece.len() <= 12 && text.trim_ascii_start().is_empty() { continue }
                let line = rest.next().unwrap();
                prop_assert_eq!(line.number, index as u64 + 1);
                match &line.content {
                    Content::Whole(bytes) => prop_assert_eq!(&bytes[..], text),
                    Content::TooLong(length) => prop_assert_eq!(*length, piece.len() as u64),
                }
            }
            prop_assert!(rest.next().is_none());
        }
    }
}
