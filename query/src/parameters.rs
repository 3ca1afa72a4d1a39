//! Statements with parameters: `$1`, `$2` and so on.

use std::ops::ControlFlow;

use arrow::datatypes::DataType;
use datafusion::{
    common::ScalarValue,
    logical_expr::LogicalPlan,
    sql::{
        parser::{DFParserBuilder, Statement},
        sqlparser::{
            ast::{self, Expr, FunctionArg, FunctionArgExpr, TableFactor, Value, VisitMut, VisitorMut},
            dialect::GenericDialect,
            tokenizer::{Token, Tokenizer},
        },
    },
};

use crate::{error::QueryError, reading::check_size};

/// Most parameters of a statement.
const MOST: usize = 1000;

/// One statement, as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    statement: Statement,
    parameters: usize,
}

impl Text {
    /// Reads one statement.
    pub(crate) fn read(sql: &str) -> Result<Self, QueryError> {
        check_size(sql)?;
        let mut statements = DFParserBuilder::new(sql).with_dialect(&GenericDialect {}).build()?.parse_statements()?;
        match (statements.pop_front(), statements.len()) {
            (Some(statement), 0) => Self::new(statement),
            (None, _) => Err(QueryError::Query("one statement is expected, and none was given".to_owned())),
            (Some(_), more) => {
                Err(QueryError::Query(format!("one statement is expected, and {} were given", more + 1)))
            }
        }
    }

    /// Of this statement.
    pub(crate) fn new(mut statement: Statement) -> Result<Self, QueryError> {
        let mut highest = Highest(0);
        if let Statement::Statement(inner) = &mut statement {
            let _ = inner.visit(&mut highest);
        }
        if highest.0 > MOST {
            return Err(QueryError::Query(format!("${}: expected {MOST} parameters at most", highest.0)));
        }
        Ok(Self { statement, parameters: highest.0 })
    }

    /// How many parameters there are.
    pub(crate) const fn parameters(&self) -> usize {
        self.parameters
    }

    /// To be planned for its types: arguments of table functions are unknown.
    pub(crate) fn for_types(&self) -> Statement {
        self.with_arguments(|_| Value::Null)
    }

    /// To be planned with these parameters: a table function has to know its arguments before there is a plan.
    pub(crate) fn filled(&self, values: &[ScalarValue]) -> Result<Statement, QueryError> {
        Ok(self.with_arguments(|number| match values.get(number.wrapping_sub(1)) {
            None => Value::Null,
            Some(value) if value.is_null() => Value::Null,
            Some(value) if value.data_type().is_numeric() => Value::Number(value.to_string(), false),
            Some(value) => Value::SingleQuotedString(value.to_string()),
        }))
    }

    fn with_arguments(&self, value: impl Fn(usize) -> Value) -> Statement {
        let mut statement = self.statement.clone();
        if self.parameters > 0
            && let Statement::Statement(inner) = &mut statement
        {
            let _ = inner.visit(&mut Arguments(value));
        }
        statement
    }

    /// The types of the parameters, as far as the plan tells.
    pub(crate) fn types(&self, plan: &LogicalPlan) -> Result<Vec<Option<DataType>>, QueryError> {
        let mut known = plan.get_parameter_types()?;
        Ok((1..=self.parameters).map(|number| known.remove(&format!("${number}")).flatten()).collect())
    }
}

/// The statement with `$1`, `$2` and so on for each `?`.
pub(crate) fn with_numbers(sql: &str) -> Result<String, QueryError> {
    if !sql.contains('?') {
        return Ok(sql.to_owned());
    }
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize();
    let tokens = tokens.map_err(|error| QueryError::Query(format!("SQL: {error}")))?;
    let mut number = 0;
    let text = tokens.iter().map(|token| match token {
        Token::Placeholder(name) if name == "?" => {
            number += 1;
            format!("${number}")
        }
        other => other.to_string(),
    });
    Ok(text.collect())
}

fn number(value: &Value) -> Option<usize> {
    match value {
        Value::Placeholder(name) => name.strip_prefix('$')?.parse().ok(),
        _ => None,
    }
}

/// Finds the highest number.
struct Highest(usize);

impl VisitorMut for Highest {
    type Break = ();

    fn pre_visit_value(&mut self, value: &mut ast::ValueWithSpan) -> ControlFlow<()> {
        self.0 = self.0.max(number(&value.value).unwrap_or(0));
        ControlFlow::Continue(())
    }
}

/// Puts values in the place of parameters of table functions.
struct Arguments<F>(F);

impl<F: Fn(usize) -> Value> VisitorMut for Arguments<F> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<()> {
        let arguments = match table {
            TableFactor::Table { args: Some(arguments), .. } => &mut arguments.args,
            TableFactor::Function { args, .. } => args,
            _ => return ControlFlow::Continue(()),
        };
        for argument in arguments {
            if let FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))) = argument
                && let Some(number) = number(&value.value)
            {
                value.value = (self.0)(number);
            }
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_table_functions_are_put_in_place() {
        let text = Text::read("SELECT $3 FROM routing($1, $2) WHERE layer = $3").unwrap();
        assert_eq!(text.parameters(), 3);
        let values = [ScalarValue::from("it's"), ScalarValue::from(0_i64), ScalarValue::from(1_i64)];
        let filled = text.filled(&values).unwrap().to_string();
        assert_eq!(filled, "SELECT $3 FROM routing('it''s', 0) WHERE layer = $3");
        assert_eq!(text.for_types().to_string(), "SELECT $3 FROM routing(NULL, NULL) WHERE layer = $3");
    }

    #[test]
    fn question_marks_become_numbers_outside_of_text() {
        assert_eq!(with_numbers("SELECT '?' , ? + ?").unwrap(), "SELECT '?' , $1 + $2");
    }

    #[test]
    fn one_statement_is_expected() {
        let error = |sql| Text::read(sql).unwrap_err().to_string();
        assert_eq!(error("SELECT 1; SELECT 2"), "one statement is expected, and 2 were given");
        assert_eq!(error("  "), "one statement is expected, and none was given");
    }
}
