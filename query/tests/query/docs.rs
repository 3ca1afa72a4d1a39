//! The examples of `docs/sql.md`.

use gatescope_query::Format;

use crate::{opened, small, written};

#[tokio::test]
async fn every_example_of_the_page_runs() {
    let page = include_str!("../../../docs/sql.md");
    let catalog = opened(small()).await;

    let examples: Vec<&str> = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();

    assert!(examples.len() >= 10, "{} examples", examples.len());
    for example in examples {
        // The page speaks of a 48-layer model and a request of it; the folder here has a smaller one.
        let sql =
            example.replace("routing_48x8_u8", "routing_3x2_u8").replace("l07", "l02").replace("chatcmpl-17", "req-b");
        for statement in sql.split_terminator(';').filter(|statement| !statement.trim().is_empty()) {
            let answer = written(&catalog, statement, Format::Table).await;
            let answer = answer.unwrap_or_else(|error| panic!("{statement}: {error}"));
            assert!(answer.lines().count() > 2, "an example shows rows: {statement}\n{answer}");
        }
    }
}
