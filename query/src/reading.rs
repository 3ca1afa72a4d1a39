//! What a statement may be: short, shallow, and one that reads.

use datafusion::sql::{
    parser::Statement,
    sqlparser::{
        ast,
        dialect::GenericDialect,
        keywords::Keyword,
        tokenizer::{Token, Tokenizer},
    },
};

use crate::error::QueryError;

/// Most words and signs of a statement.
const TOKENS: usize = 100_000;
/// Most operators: each makes a statement one deeper, and whoever walks a deep one needs as much stack.
const OPERATORS: usize = 1000;
/// Most joins and tables: the time that the order of joins takes grows faster than their number.
const JOINS: usize = 64;

/// Refuses what would take too long, or too much stack, to look at.
pub(crate) fn check_size(sql: &str) -> Result<(), QueryError> {
    // What is no SQL is said by who reads it.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, sql).tokenize() else { return Ok(()) };
    let refused = |what: &str, count: usize, most: usize| {
        Err(QueryError::Query(format!("the statement has {count} {what}: expected {most} at most")))
    };
    let count = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).count();
    if count > TOKENS {
        return refused("words and signs", count, TOKENS);
    }
    let operators = tokens.iter().filter(|token| is_operator(token)).count();
    if operators > OPERATORS {
        return refused("operators", operators, OPERATORS);
    }
    let joins = tokens.iter().filter(|token| is_join(token)).count();
    if joins > JOINS {
        return refused("joins and subqueries", joins, JOINS);
    }
    Ok(())
}

fn is_operator(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AND
                | Keyword::OR
                | Keyword::NOT
                | Keyword::UNION
                | Keyword::INTERSECT
                | Keyword::EXCEPT
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::IS
                | Keyword::IN
                | Keyword::BETWEEN
                | Keyword::CASE
                | Keyword::COLLATE
        ),
        Token::Whitespace(_)
        | Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::DoubleQuotedString(_)
        | Token::Placeholder(_)
        | Token::Comma
        | Token::Period
        | Token::LParen
        | Token::RParen
        | Token::RBracket
        | Token::SemiColon
        | Token::EOF => false,
        _ => true,
    }
}

fn is_join(token: &Token) -> bool {
    matches!(token, Token::Word(word) if matches!(word.keyword, Keyword::JOIN | Keyword::FROM | Keyword::LATERAL))
}

/// Refuses, before it is planned, what is known to do something else than read.
pub(crate) fn check_reads(statement: &Statement) -> Result<(), QueryError> {
    let what = match statement {
        Statement::CopyTo(_) => "COPY",
        Statement::CreateExternalTable(_) => "CREATE EXTERNAL TABLE",
        Statement::Reset(_) => "RESET",
        Statement::Explain(explain) => return check_reads(&explain.statement),
        Statement::Statement(inner) => match inner.as_ref() {
            ast::Statement::Query(_)
            | ast::Statement::Explain { .. }
            | ast::Statement::ExplainTable { .. }
            | ast::Statement::ShowTables { .. }
            | ast::Statement::ShowColumns { .. }
            | ast::Statement::ShowFunctions { .. }
            | ast::Statement::ShowVariable { .. }
            | ast::Statement::ShowDatabases { .. }
            | ast::Statement::ShowSchemas { .. } => return Ok(()),
            other => return Err(QueryError::ReadOnly(first_words(&other.to_string()))),
        },
    };
    Err(QueryError::ReadOnly(what.to_owned()))
}

/// `DROP TABLE` of `DROP TABLE requests`.
fn first_words(statement: &str) -> String {
    let words = statement.split_whitespace().take_while(|word| word.chars().all(|c| c.is_ascii_uppercase()));
    let words: Vec<&str> = words.take(2).collect();
    if words.is_empty() { "the statement".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_statements_are_refused_before_anybody_walks_them() {
        let long = |part: &str, times: usize| format!("SELECT 1{}", part.repeat(times));
        for (part, times, what) in [
            ("+1", 20_000, "operators"),
            ("::int", 20_000, "operators"),
            (" OR 1", 20_000, "operators"),
            (", 1", 200_000, "words and signs"),
        ] {
            let error = check_size(&long(part, times)).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        assert!(check_size(&long("+1", 999)).is_ok());
        assert!(check_size(&format!("SELECT 1 WHERE 1 IN ({})", "1,".repeat(20_000) + "1")).is_ok());
        let joins = format!("SELECT 1 FROM a{}", " JOIN a USING (b)".repeat(100));
        assert!(check_size(&joins).unwrap_err().to_string().contains("joins"));
    }
}
