//! What a server says about itself.

use std::sync::LazyLock;

use arrow_flight::sql::{
    SqlInfo, SqlSupportedTransaction,
    metadata::{SqlInfoData, SqlInfoDataBuilder},
};

/// What drivers ask first. `None` where it cannot be said, which would be a fault of the library.
pub(super) static ABOUT: LazyLock<Option<SqlInfoData>> = LazyLock::new(|| {
    let mut about = SqlInfoDataBuilder::new();
    about.append(SqlInfo::FlightSqlServerName, "gatescope");
    about.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    about.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
    about.append(SqlInfo::FlightSqlServerReadOnly, true);
    about.append(SqlInfo::FlightSqlServerSql, true);
    about.append(SqlInfo::FlightSqlServerSubstrait, false);
    about.append(SqlInfo::FlightSqlServerCancel, false);
    about.append(SqlInfo::FlightSqlServerTransaction, SqlSupportedTransaction::None as i32);
    about.append(SqlInfo::SqlDdlCatalog, false);
    about.append(SqlInfo::SqlDdlSchema, false);
    about.append(SqlInfo::SqlDdlTable, false);
    about.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    about.build().ok()
});
