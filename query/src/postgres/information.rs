//! `information_schema` with the types that Postgres has: tools choose by them what a column can be used for.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{ArrayRef, Int32Array, RecordBatch, StringArray},
    datatypes::{DataType, SchemaRef},
};
use async_trait::async_trait;
use datafusion::{
    catalog::{MemTable, SchemaProvider, TableProvider, information_schema::InformationSchemaProvider},
    common::Result,
    logical_expr::TableType,
};

use crate::session::{CATALOG, PUBLIC};

const COLUMNS: &str = "columns";

/// The schema `information_schema`.
#[derive(Debug)]
pub(super) struct Information {
    others: InformationSchemaProvider,
    columns: Arc<dyn TableProvider>,
}

impl Information {
    /// Describes these tables; all but the columns is DataFusion's own.
    pub(super) fn of(
        others: InformationSchemaProvider,
        tables: &BTreeMap<String, (SchemaRef, TableType)>,
    ) -> Result<Self> {
        let columns = columns(tables)?;
        let columns = MemTable::try_new(columns.schema(), vec![vec![columns]])?;
        Ok(Self { others, columns: Arc::new(columns) })
    }
}

#[async_trait]
impl SchemaProvider for Information {
    fn table_names(&self) -> Vec<String> {
        self.others.table_names()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if name.eq_ignore_ascii_case(COLUMNS) {
            return Ok(Some(Arc::clone(&self.columns)));
        }
        self.others.table(name).await
    }

    fn table_exist(&self, name: &str) -> bool {
        self.others.table_exist(name)
    }
}

fn columns(tables: &BTreeMap<String, (SchemaRef, TableType)>) -> Result<RecordBatch> {
    let described = tables.iter().flat_map(|(table, (schema, _))| {
        schema.fields().iter().enumerate().map(move |(index, field)| (table.as_str(), index as i32 + 1, field))
    });
    let described: Vec<_> = described.collect();
    let text = |each: &dyn Fn(usize) -> Option<&'static str>| -> ArrayRef {
        Arc::new((0..described.len()).map(each).collect::<StringArray>())
    };
    let constant = |value: Option<&'static str>| text(&|_| value);
    let number = |each: &dyn Fn(&DataType) -> Option<i32>| -> ArrayRef {
        Arc::new(described.iter().map(|(.., field)| each(field.data_type())).collect::<Int32Array>())
    };
    let tables: StringArray = described.iter().map(|(table, ..)| Some(*table)).collect();
    let names: StringArray = described.iter().map(|(.., field)| Some(field.name().as_str())).collect();
    let positions: Int32Array = described.iter().map(|(_, position, _)| Some(*position)).collect();
    let types = text(&|index| Some(type_name(described[index].2.data_type()).0));
    let udts = text(&|index| Some(type_name(described[index].2.data_type()).1));
    let nullable = text(&|index| Some(if described[index].2.is_nullable() { "YES" } else { "NO" }));
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("table_catalog", constant(Some(CATALOG)), false),
        ("table_schema", constant(Some(PUBLIC)), false),
        ("table_name", Arc::new(tables) as ArrayRef, false),
        ("column_name", Arc::new(names), false),
        ("ordinal_position", Arc::new(positions), false),
        ("column_default", constant(None), true),
        ("is_nullable", nullable, false),
        ("data_type", types, false),
        ("character_maximum_length", number(&|_| None), true),
        ("character_octet_length", number(&|_| None), true),
        ("numeric_precision", number(&precision), true),
        ("numeric_precision_radix", number(&|data_type| precision(data_type).map(|_| 2)), true),
        ("numeric_scale", number(&|data_type| data_type.is_integer().then_some(0)), true),
        ("datetime_precision", number(&|data_type| data_type.is_temporal().then_some(6)), true),
        ("udt_catalog", constant(Some(CATALOG)), false),
        ("udt_schema", constant(Some("pg_catalog")), false),
        ("udt_name", udts, false),
        ("is_updatable", constant(Some("NO")), false),
    ])?)
}

fn precision(data_type: &DataType) -> Option<i32> {
    match data_type {
        DataType::Int16 => Some(16),
        DataType::Int32 => Some(32),
        DataType::Int64 | DataType::UInt64 => Some(64),
        DataType::Float64 => Some(53),
        _ => None,
    }
}

/// The type's name in SQL and in Postgres's catalog.
fn type_name(data_type: &DataType) -> (&'static str, &'static str) {
    match data_type {
        DataType::Boolean => ("boolean", "bool"),
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => ("smallint", "int2"),
        DataType::Int32 | DataType::UInt16 => ("integer", "int4"),
        DataType::Int64 | DataType::UInt32 | DataType::UInt64 => ("bigint", "int8"),
        DataType::Float32 => ("real", "float4"),
        DataType::Float64 => ("double precision", "float8"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ("text", "text"),
        DataType::Date32 | DataType::Date64 => ("date", "date"),
        DataType::Timestamp(_, Some(_)) => ("timestamp with time zone", "timestamptz"),
        DataType::Timestamp(_, None) => ("timestamp without time zone", "timestamp"),
        DataType::Binary | DataType::BinaryView | DataType::LargeBinary | DataType::FixedSizeBinary(_) => {
            ("bytea", "bytea")
        }
        DataType::List(element) => match element.data_type() {
            DataType::Int32 => ("ARRAY", "_int4"),
            DataType::Int64 => ("ARRAY", "_int8"),
            _ => ("ARRAY", "_record"),
        },
        DataType::Struct(_) => ("record", "record"),
        _ => ("text", "text"),
    }
}
