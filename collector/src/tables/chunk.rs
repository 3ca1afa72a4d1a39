//! Column chunks written page by page. A layer's page is its ids as they are, and a key column is a handful of runs, so
//! there is nothing to encode value by value; the encoders of the `parquet` crate, which look at every value, take
//! several times as long as the compression.

use std::sync::Arc;

use bytes::Bytes;
use parquet::{
    basic::{Compression, Encoding, ZstdLevel},
    bloom_filter::Sbbf,
    column::{
        page::{CompressedPage, Page, PageWriter},
        writer::ColumnCloseResult,
    },
    data_type::ByteArray,
    errors::{ParquetError, Result},
    file::{
        metadata::{ColumnChunkMetaData, ColumnIndexBuilder, OffsetIndexBuilder},
        page_index::column_index::ColumnIndexMetaData,
        statistics::Statistics,
        writer::{SerializedPageWriter, TrackedWrite},
    },
    schema::types::ColumnDescPtr,
};

/// Level 1: ids hardly repeat, so what a page gains it gains from the uneven use of experts, which every level finds.
const LEVEL: i32 = 1;

/// The codec of a file's columns, unless a chunk says otherwise.
pub(super) fn compression() -> Result<Compression> {
    Ok(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
}

/// How the pages of a chunk are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Zstd,
    Plain,
}

/// Bytes of a page that are looked at to choose a codec.
const SAMPLE: usize = 16 << 10;

/// Compresses pages, with one context for all of them.
pub(super) struct PageCompressor {
    context: zstd::bulk::Compressor<'static>,
}

impl PageCompressor {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { context: zstd::bulk::Compressor::new(LEVEL).map_err(external)? })
    }

    fn compress(&mut self, page: &[u8]) -> Result<Bytes> {
        self.context.compress(page).map(Bytes::from).map_err(external)
    }

    /// The codec for pages like this one: zstd where it saves a quarter. Ids of 128 experts or more in a byte each save
    /// less, and then compressing them is the larger part of an import and decompressing them that of a scan.
    pub(super) fn codec_for(&mut self, page: &[u8]) -> Result<Codec> {
        let sample = &page[..page.len().min(SAMPLE)];
        Ok(if self.compress(sample)?.len() * 4 <= sample.len() * 3 { Codec::Zstd } else { Codec::Plain })
    }
}

/// A finished chunk: its bytes and what the footer says of it.
pub(super) type Chunk = (Bytes, ColumnCloseResult);

/// A column chunk in the making, without nulls.
pub(super) struct Pages {
    codec: Codec,
    sink: TrackedWrite<Vec<u8>>,
    offsets: OffsetIndexBuilder,
    encodings: Vec<Encoding>,
    dictionary_at: Option<i64>,
    data_at: Option<i64>,
    uncompressed: usize,
    rows: usize,
}

impl Pages {
    /// A chunk of about so many bytes.
    pub(super) fn new(codec: Codec, capacity: usize) -> Self {
        Self {
            codec,
            sink: TrackedWrite::new(Vec::with_capacity(capacity)),
            offsets: OffsetIndexBuilder::new(),
            encodings: Vec::new(),
            dictionary_at: None,
            data_at: None,
            uncompressed: 0,
            rows: 0,
        }
    }

    pub(super) fn write_data(
        &mut self,
        compressor: &mut PageCompressor,
        page: &[u8],
        rows: usize,
        encoding: Encoding,
    ) -> Result<()> {
        let page_at = self.write(
            Page::DataPage {
                buf: self.keep(compressor, page)?,
                num_values: rows as u32,
                encoding,
                def_level_encoding: Encoding::RLE,
                rep_level_encoding: Encoding::RLE,
                statistics: None,
            },
            page.len(),
        )?;
        self.data_at.get_or_insert(page_at);
        self.offsets.append_offset_and_size(page_at, (self.sink.bytes_written() as i64 - page_at) as i32);
        self.offsets.append_row_count(rows as i64);
        self.rows += rows;
        Ok(())
    }

    fn write_dictionary(&mut self, compressor: &mut PageCompressor, page: &[u8], values: usize) -> Result<()> {
        let page_at = self.write(
            Page::DictionaryPage {
                buf: self.keep(compressor, page)?,
                num_values: values as u32,
                encoding: Encoding::PLAIN,
                is_sorted: false,
            },
            page.len(),
        )?;
        self.dictionary_at = Some(page_at);
        Ok(())
    }

    fn keep(&self, compressor: &mut PageCompressor, page: &[u8]) -> Result<Bytes> {
        match self.codec {
            Codec::Zstd => compressor.compress(page),
            Codec::Plain => Ok(Bytes::copy_from_slice(page)),
        }
    }

    fn write(&mut self, page: Page, uncompressed: usize) -> Result<i64> {
        if !self.encodings.contains(&page.encoding()) {
            self.encodings.push(page.encoding());
        }
        let at = self.sink.bytes_written() as i64;
        let written = SerializedPageWriter::new(&mut self.sink).write_page(CompressedPage::new(page, uncompressed))?;
        self.uncompressed += written.uncompressed_size;
        Ok(at)
    }

    pub(super) fn close(
        mut self,
        column: ColumnDescPtr,
        statistics: Option<Statistics>,
        column_index: Option<ColumnIndexMetaData>,
        bloom_filter: Option<Sbbf>,
    ) -> Result<Chunk> {
        // The levels of a column without nulls are said to be run-length encoded, though there are none.
        self.encodings.push(Encoding::RLE);
        let bytes = Bytes::from(self.sink.into_inner()?);
        let mut metadata = ColumnChunkMetaData::builder(column)
            .set_compression(match self.codec {
                Codec::Zstd => compression()?,
                Codec::Plain => Compression::UNCOMPRESSED,
            })
            .set_encodings(self.encodings)
            .set_num_values(self.rows as i64)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(self.uncompressed as i64)
            .set_dictionary_page_offset(self.dictionary_at)
            .set_data_page_offset(self.data_at.unwrap_or_default());
        if let Some(statistics) = statistics {
            metadata = metadata.set_statistics(statistics);
        }
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: self.rows as u64,
            metadata: metadata.build()?,
            bloom_filter,
            column_index,
            offset_index: Some(self.offsets.build()),
        };
        Ok((bytes, close))
    }
}

/// The distinct values of a key column in one row group.
pub(super) enum Dictionary<'a> {
    Strings(&'a [Arc<str>]),
    Ints(&'a [i32]),
}

impl Dictionary<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Strings(values) => values.len(),
            Self::Ints(values) => values.len(),
        }
    }

    fn plain(&self) -> Vec<u8> {
        match self {
            Self::Strings(values) => values
                .iter()
                .flat_map(|value| (value.len() as u32).to_le_bytes().into_iter().chain(value.bytes()))
                .collect(),
            Self::Ints(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    fn bytes(&self, index: u32) -> Vec<u8> {
        match self {
            Self::Strings(values) => values[index as usize].as_bytes().to_vec(),
            Self::Ints(values) => values[index as usize].to_le_bytes().to_vec(),
        }
    }

    /// The least and the greatest value among these.
    fn range(&self, indices: impl Iterator<Item = u32> + Clone) -> Option<(u32, u32)> {
        match self {
            Self::Strings(values) => {
                let value = |index: &u32| &*values[*index as usize];
                Some((indices.clone().min_by_key(value)?, indices.max_by_key(value)?))
            }
            Self::Ints(values) => {
                let value = |index: &u32| values[*index as usize];
                Some((indices.clone().min_by_key(value)?, indices.max_by_key(value)?))
            }
        }
    }

    fn statistics(&self, (min, max): (u32, u32)) -> Statistics {
        match self {
            Self::Strings(_) => Statistics::byte_array(
                Some(ByteArray::from(self.bytes(min))),
                Some(ByteArray::from(self.bytes(max))),
                None,
                Some(0),
                false,
            ),
            Self::Ints(values) => {
                Statistics::int32(Some(values[min as usize]), Some(values[max as usize]), None, Some(0), false)
            }
        }
    }
}

/// A key column of one row group from its pages: runs of `(index into the dictionary, rows)`.
pub(super) fn run_column(
    compressor: &mut PageCompressor,
    column: ColumnDescPtr,
    dictionary: &Dictionary<'_>,
    pages_of_runs: &[Vec<(u32, u32)>],
    with_bloom_filter: bool,
) -> Result<Chunk> {
    let mut pages = Pages::new(Codec::Zstd, 0);
    pages.write_dictionary(compressor, &dictionary.plain(), dictionary.len())?;
    let bit_width = (u32::BITS - (dictionary.len().max(2) as u32 - 1).leading_zeros()) as u8;
    let mut index = ColumnIndexBuilder::new(column.physical_type());
    for page in pages_of_runs {
        let mut body = vec![bit_width];
        for &(value, rows) in page {
            push_run(&mut body, bit_width, value, rows);
        }
        let Some((min, max)) = dictionary.range(page.iter().map(|run| run.0)) else { continue };
        index.append(false, dictionary.bytes(min), dictionary.bytes(max), 0);
        let rows = page.iter().map(|run| run.1 as usize).sum();
        pages.write_data(compressor, &body, rows, Encoding::RLE_DICTIONARY)?;
    }
    let statistics =
        dictionary.range(pages_of_runs.iter().flatten().map(|run| run.0)).map(|range| dictionary.statistics(range));
    let bloom_filter = match dictionary {
        Dictionary::Strings(values) if with_bloom_filter => {
            let mut filter = Sbbf::new_with_ndv_fpp(values.len().max(1) as u64, 0.01)?;
            values.iter().for_each(|value| filter.insert(&**value));
            Some(filter)
        }
        _ => None,
    };
    pages.close(column, statistics, Some(index.build()?), bloom_filter)
}

/// Cuts runs where pages end and joins neighbours of equal value.
pub(super) fn pages_of(runs: impl Iterator<Item = (u32, u32)>, rows_per_page: usize) -> Vec<Vec<(u32, u32)>> {
    let mut pages: Vec<Vec<(u32, u32)>> = Vec::new();
    let mut space = 0;
    for (value, mut rows) in runs {
        while rows > 0 {
            if space == 0 {
                pages.push(Vec::new());
                space = rows_per_page as u32;
            }
            let taken = rows.min(space);
            if let Some(page) = pages.last_mut() {
                match page.last_mut() {
                    Some(last) if last.0 == value => last.1 += taken,
                    _ => page.push((value, taken)),
                }
            }
            rows -= taken;
            space -= taken;
        }
    }
    pages
}

/// A run of Parquet's run-length/bit-packing hybrid: twice the length as a varint, then the value.
fn push_run(body: &mut Vec<u8>, bit_width: u8, value: u32, rows: u32) {
    let mut header = u64::from(rows) << 1;
    while header >= 0x80 {
        body.push(header as u8 | 0x80);
        header >>= 7;
    }
    body.push(header as u8);
    body.extend_from_slice(&value.to_le_bytes()[..usize::from(bit_width).div_ceil(8)]);
}

fn external(error: std::io::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}
