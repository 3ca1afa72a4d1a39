//! What tools ask a Postgres server about itself.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use datafusion::{
    catalog::{SchemaProvider, information_schema::InformationSchemaProvider},
    common::{Result, ScalarValue, exec_err, plan_err},
    execution::{SessionState, SessionStateBuilder},
    logical_expr::{
        ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, SimpleScalarUDF, TableType,
        TypeSignature, Volatility,
    },
    prelude::{SessionConfig, SessionContext},
};
use datafusion_postgres::datafusion_pg_catalog::{
    pg_catalog::{
        PgCatalogSchemaProvider, PgCatalogStaticTables, catalog_info::CatalogInfo, context::EmptyContextProvider,
        oid_type_planner::PgOidTypePlanner,
    },
    setup_pg_catalog,
};

use super::{information::Information, settings};
use crate::{
    error::QueryError,
    session::{CATALOG, PUBLIC},
};

/// Words of questions that only Postgres's own catalog answers.
const WORDS: [&str; 8] =
    ["pg_", "information_schema", "current_", "session_user", "regclass", "quote_ident", "version()", " any("];

/// Whether a statement asks Postgres's catalog. Such a one is rewritten; every other is read as all servers read it.
pub(super) fn asks_catalog(sql: &str) -> bool {
    let sql = sql.to_ascii_lowercase();
    WORDS.iter().any(|word| sql.contains(word))
}

/// Where Grafana asks for the schemas in the search path, which takes correlated arrays; here it is always `public`.
pub(super) fn with_search_path(sql: &str) -> Cow<'_, str> {
    const BEGIN: &str = "SELECT";
    const MIDDLE: &str = "CASE WHEN trim(s[i]) = '\"$user\"' THEN user ELSE trim(s[i]) END";
    const END: &str = "string_to_array(current_setting('search_path'),',') s";
    let mut sql = Cow::Borrowed(sql);
    while let Some(middle) = sql.find(MIDDLE) {
        let begin = sql[..middle].rfind(BEGIN);
        let end = sql[middle..].find(END).map(|end| middle + end + END.len());
        let (Some(begin), Some(end)) = (begin, end) else { break };
        sql.to_mut().replace_range(begin..end, "'public'");
    }
    sql
}

/// Functions that tools call about what there is none of here: they answer NULL.
const UNKNOWN: [(&str, usize, DataType); 5] = [
    ("to_regtype", 1, DataType::Int32),
    ("obj_description", 2, DataType::Utf8),
    ("col_description", 2, DataType::Utf8),
    ("shobj_description", 2, DataType::Utf8),
    ("pg_size_pretty", 1, DataType::Utf8),
];

fn unknown(name: &str, arguments: usize, returns: DataType) -> ScalarUDF {
    let none = ScalarValue::try_from(&returns).unwrap_or(ScalarValue::Null);
    let answer = move |_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(none.clone()));
    let signature = Signature::any(arguments, Volatility::Stable);
    ScalarUDF::from(SimpleScalarUDF::new_with_signature(name, signature, returns, Arc::new(answer)))
}

/// Postgres's catalog of our tables. One for all connections: a table keeps its number.
pub(super) struct PostgresCatalog {
    tables: Arc<dyn SchemaProvider>,
    newest: Newest,
    /// Has the functions that tools call.
    template: SessionState,
}

impl PostgresCatalog {
    pub(super) fn new() -> Result<Self, QueryError> {
        let config = SessionConfig::new().with_default_catalog_and_schema(CATALOG, "public");
        let template = SessionContext::new_with_config(config);
        setup_pg_catalog(&template, CATALOG, EmptyContextProvider).map_err(|error| QueryError::from(*error))?;
        template.register_udf(ScalarUDF::from(CurrentSetting::new()));
        for (name, arguments, returns) in UNKNOWN {
            template.register_udf(unknown(name, arguments, returns));
        }
        template.register_udf(ScalarUDF::from(Version { signature: Signature::nullary(Volatility::Stable) }));
        let newest = Newest::default();
        let fixed = Arc::new(PgCatalogStaticTables::try_new()?);
        let tables = PgCatalogSchemaProvider::try_new(newest.clone(), fixed, EmptyContextProvider)?;
        Ok(Self { tables: Arc::new(tables), newest, template: template.state() })
    }

    /// Puts it beside the tables of a session.
    pub(super) async fn install(&self, context: &SessionContext) -> Result<(), QueryError> {
        let Some(catalog) = context.catalog(CATALOG) else { return Ok(()) };
        let Some(public) = catalog.schema(PUBLIC) else { return Ok(()) };
        let mut tables = BTreeMap::new();
        for name in public.table_names() {
            if let Some(table) = public.table(&name).await? {
                tables.insert(name, (table.schema(), table.table_type()));
            }
        }
        let others = InformationSchemaProvider::new(Arc::clone(context.state().catalog_list()));
        catalog.register_schema("information_schema", Arc::new(Information::of(others, &tables)?))?;
        *self.newest.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tables);
        catalog.register_schema("pg_catalog", Arc::clone(&self.tables))?;

        let known = context.state();
        for (name, function) in self.template.scalar_functions() {
            if !known.scalar_functions().contains_key(name) || name == "version" {
                context.register_udf(function.as_ref().clone());
            }
        }
        for (name, function) in self.template.table_functions() {
            // Those that both have take whole numbers of any width here.
            context.register_udtf(name, Arc::clone(function.function()));
        }
        let mut state = SessionStateBuilder::new_from_existing(context.state());
        if let Some(config) = state.config() {
            // The one of its own would go before ours.
            config.options_mut().catalog.information_schema = false;
        }
        let state = state.with_type_planner(Arc::new(PgOidTypePlanner));
        *context.state_ref().write() = state.build();
        Ok(())
    }
}

/// Columns and kind of each table.
type Tables = BTreeMap<String, (SchemaRef, TableType)>;

/// The tables as the last statement saw them.
#[derive(Debug, Clone, Default)]
struct Newest(Arc<RwLock<Arc<Tables>>>);

impl Newest {
    fn tables(&self) -> Arc<Tables> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl CatalogInfo for Newest {
    async fn catalog_names(&self) -> Result<Vec<String>> {
        Ok(vec![CATALOG.to_owned()])
    }

    async fn schema_names(&self, _: &str) -> Result<Option<Vec<String>>> {
        Ok(Some([PUBLIC, "pg_catalog", "information_schema"].map(str::to_owned).to_vec()))
    }

    async fn table_names(&self, _: &str, schema: &str) -> Result<Option<Vec<String>>> {
        Ok(Some(if schema == PUBLIC { self.tables().keys().cloned().collect() } else { Vec::new() }))
    }

    async fn table_schema(&self, _: &str, _: &str, table: &str) -> Result<Option<SchemaRef>> {
        Ok(self.tables().get(table).map(|(schema, _)| Arc::clone(schema)))
    }

    async fn table_type(&self, _: &str, _: &str, table: &str) -> Result<Option<TableType>> {
        Ok(self.tables().get(table).map(|(_, kind)| *kind))
    }
}

/// `current_setting('name' [, missing_ok])`, as nobody has set it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CurrentSetting {
    signature: Signature,
}

impl CurrentSetting {
    fn new() -> Self {
        let text = vec![DataType::Utf8];
        let both = vec![DataType::Utf8, DataType::Boolean];
        let either = vec![TypeSignature::Exact(text), TypeSignature::Exact(both)];
        Self { signature: Signature::one_of(either, Volatility::Stable) }
    }
}

impl ScalarUDFImpl for CurrentSetting {
    fn name(&self) -> &str {
        "current_setting"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        if arguments.is_empty() { plan_err!("current_setting('name')") } else { Ok(DataType::Utf8) }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(ColumnarValue::Scalar(name)) = args.args.first() else {
            return exec_err!("current_setting('name'): the name is one text");
        };
        let name = name.try_as_str().flatten().unwrap_or_default().to_lowercase();
        let missing = matches!(args.args.get(1), Some(ColumnarValue::Scalar(ScalarValue::Boolean(Some(true)))));
        match settings::preset(&name) {
            Some(value) => Ok(ColumnarValue::Scalar(ScalarValue::Utf8(Some(value.to_owned())))),
            None if missing => Ok(ColumnarValue::Scalar(ScalarValue::Utf8(None))),
            None => exec_err!("unrecognized configuration parameter \"{name}\""),
        }
    }
}

/// `version()`: clients read a number of Postgres in it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Version {
    signature: Signature,
}

impl ScalarUDFImpl for Version {
    fn name(&self) -> &str {
        "version"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let version = format!("PostgreSQL {} (gatescope {})", settings::VERSION, env!("CARGO_PKG_VERSION"));
        Ok(ColumnarValue::Scalar(ScalarValue::Utf8(Some(version))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_path_is_public() {
        let sql = "WHERE quote_ident(table_schema) IN (
          SELECT
            CASE WHEN trim(s[i]) = '\"$user\"' THEN user ELSE trim(s[i]) END
          FROM
            generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)
            ) as i,
            string_to_array(current_setting('search_path'),',') s
          ) AND 1 = 1";

        let replaced = with_search_path(sql);

        let words: Vec<&str> = replaced.split_whitespace().collect();
        assert_eq!(words.join(" "), "WHERE quote_ident(table_schema) IN ( 'public' ) AND 1 = 1");
        assert_eq!(with_search_path("SELECT 1"), "SELECT 1");
    }
}
