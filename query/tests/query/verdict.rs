//! What `check` says.

use gatescope_query::{
    Catalog,
    verdict::{Outcome, Report, SHOWN_FINDINGS, Scope, Style},
};
use serde_json::{Value, json};

use crate::{
    folder::{Folder, Routing, rows_of},
    open, opened, small,
};

fn report(style: Style) -> Report {
    Report { scope: Scope::default(), against: None, style }
}

async fn text(catalog: &Catalog, report: &Report) -> (Outcome, String) {
    let mut output = Vec::new();
    let outcome = report.write(catalog, &mut output).await.unwrap();
    (outcome, String::from_utf8(output).unwrap())
}

async fn document(catalog: &Catalog, report: &Report) -> (Outcome, Value) {
    let (outcome, text) = text(catalog, report).await;
    (outcome, serde_json::from_str(&text).unwrap())
}

#[tokio::test]
async fn a_request_with_a_finding_has_a_line_with_both_sides() {
    let catalog = opened(small()).await;

    let (outcome, text) = text(&catalog, &report(Style::Text)).await;

    let expected = "\
req-b: whole; GS013 overlap disagrees: position 2 layer 1: prefill [1,2] / decode [1,3]

3 requests: 3 whole, 0 incomplete, 0 conflict; 2 clean
findings: GS013 1
";
    assert_eq!((outcome, text.as_str()), (Outcome::Findings, expected));
}

#[tokio::test]
async fn one_document_holds_the_same() {
    let catalog = opened(small()).await;

    let (outcome, document) = document(&catalog, &report(Style::Json)).await;

    let finding = json!({"check": "GS013", "name": "overlap disagrees", "severity": "warning", "position": 2,
        "positions": 1, "layer": 1, "a": {"role": "prefill", "instance": "p0", "experts": [1, 2]},
        "b": {"role": "decode", "instance": "d0", "experts": [1, 3]}, "detail": "decode chose other experts"});
    let expected = json!({
        "requests": [{"run": "default", "request_id": "req-b", "choice": 0, "status": "whole", "expected_rows": 4,
                      "rows": 4, "findings": [finding], "more_findings": 0}],
        "summary": {"requests": 3, "whole": 3, "incomplete": 0, "conflict": 0, "clean": 2, "findings": {"GS013": 1}},
    });
    assert_eq!((outcome, document), (Outcome::Findings, expected));
}

#[tokio::test]
async fn clean_requests_have_no_line() {
    let catalog = opened(small()).await;
    let scope = Scope { request_id: Some("req-a".to_owned()), run: None };

    let (outcome, text) = text(&catalog, &Report { scope, ..report(Style::Text) }).await;

    assert_eq!((outcome, text.as_str()), (Outcome::Clean, "1 request: 1 whole, 0 incomplete, 0 conflict; 1 clean\n"));
}

#[tokio::test]
async fn requests_and_findings_meet_in_order() {
    // given requests of two runs, one that was never stored, and one with more findings than are shown
    let folder = Folder::empty();
    let finding = |run: &str, id: &str, position: i32| {
        json!({"check": "GS001", "severity": "error", "run": run, "request_id": id, "position": position,
               "positions": 3, "detail": "3 positions have no row"})
    };
    let mut findings = vec![finding("default", "ghost", 4), finding("twin", "b", 9)];
    findings.extend((0..SHOWN_FINDINGS as i32 + 5).rev().map(|position| finding("default", "b", position)));
    folder.commit("mismatches", &rows_of("mismatches", &findings), 1);
    let request = |run: &str, id: &str, status: &str, found: i32| json!({"run": run, "request_id": id, "status": status, "findings": found, "rows": 5, "expected_rows": 8});
    let requests = [
        request("twin", "b", "whole", 1),
        request("default", "c", "incomplete", 0),
        request("default", "a", "whole", 0),
        request("default", "b", "conflict", 25),
    ];
    folder.commit("requests", &rows_of("requests", &requests), 1);
    let catalog = open(&folder).await;

    // when
    let (_, text) = text(&catalog, &report(Style::Text)).await;

    // then
    let lines: Vec<&str> = text.lines().collect();
    let begins = [
        "b: conflict, 5 of 8 rows; GS001 rows missing: position 0: 3 positions have no row; GS001 rows missing: position 1",
        "c: incomplete, 5 of 8 rows",
        "ghost: not stored; GS001 rows missing: position 4: 3 positions have no row",
        "b run twin: whole, 5 of 8 rows; GS001 rows missing: position 9: 3 positions have no row",
        "",
        "4 requests: 2 whole, 1 incomplete, 1 conflict; 1 clean",
        "findings: GS001 27",
    ];
    assert_eq!(lines.len(), begins.len(), "{text}");
    lines.iter().zip(begins).for_each(|(line, begin)| assert!(line.starts_with(begin), "{line}"));
    assert!(lines[0].ends_with("; and 5 more findings"), "{}", lines[0]);
}

/// Runs `pd` and `twin`; `other` changes an id of the twin.
fn twins(other: impl Fn(&str, i32, u16, usize) -> u16) -> Folder {
    let id = |p: i32, l: u16, s: usize| (p as u16 + 5 * l + s as u16) % 8;
    let folder = Folder::empty();
    // The order of requests in the tables is not that of their ids, and differs.
    let pd =
        ["r2", "r1", "r3"].iter().fold(Routing::new(0..4, 3, "u8"), |rows, name| rows.request("pd", name, (6, 4), id));
    let twin = ["r1", "r3", "r2"].iter().fold(Routing::new(0..4, 3, "u8"), |rows, name| {
        rows.request("twin", name, (6, 4), |p, l, s| other(name, p, l, s))
    });
    folder.commit("routing_4x3_u8", &pd.rows(), 1);
    folder.commit("routing_4x3_u8", &twin.rows(), 2);
    let requests = ["r1", "r2", "r3"].iter().flat_map(|name| {
        ["pd", "twin"]
            .map(|run| json!({"run": run, "request_id": name, "status": "whole", "rows": 9, "expected_rows": 9}))
    });
    folder.commit("requests", &rows_of("requests", &requests.collect::<Vec<_>>()), 2);
    folder
}

fn against(run: &str, other: &str, style: Style) -> Report {
    let scope = Scope { run: Some(run.to_owned()), request_id: None };
    Report { scope, against: Some(other.to_owned()), style }
}

#[tokio::test]
async fn a_run_and_its_twin_are_identical() {
    let catalog = opened(twins(|_, p, l, s| (p as u16 + 5 * l + s as u16) % 8)).await;

    let (outcome, document) = document(&catalog, &against("pd", "twin", Style::Json)).await;

    assert_eq!(outcome, Outcome::Clean);
    assert_eq!(document["comparison"]["requests"], json!([]));
    let summary = &document["comparison"]["summary"];
    assert_eq!((&summary["requests"], &summary["identical"], &summary["rows"]), (&json!(3), &json!(3), &json!(27)));
    assert_eq!(summary["layers"][2], json!({"layer": 2, "rows": 27, "differing": 0, "differing_sets": 0}));
}

#[tokio::test]
async fn the_first_difference_and_the_rates_are_told() {
    // given a twin with two slots swapped at (4, 1) of r2, and another expert at (7, 2) and (8, 2) of it
    let other = |name: &str, p: i32, l: u16, s: usize| match (name, p, l) {
        ("r2", 4, 1) => (4 + 5 + [1, 0, 2][s]) % 8,
        ("r2", 7 | 8, 2) if s == 2 => 7,
        _ => (p as u16 + 5 * l + s as u16) % 8,
    };
    let catalog = opened(twins(other)).await;

    let (outcome, text) = text(&catalog, &against("pd", "twin", Style::Text)).await;

    let expected = "\
3 requests: 3 whole, 0 incomplete, 0 conflict; 3 clean

run pd against run twin
r2: position 4 layer 1: pd [1,2,3] / twin [2,1,3]; 3 of 9 rows differ, 2 of them as sets

3 requests compared: 2 identical, 1 differing; 0 only in pd, 0 only in twin
27 rows compared: 3 differing
layer 1: 1 of 27 rows differ (3.704%), 0 as sets
layer 2: 2 of 27 rows differ (7.407%), 2 as sets
";
    assert_eq!((outcome, text.as_str()), (Outcome::Findings, expected));
}

#[tokio::test]
async fn rows_and_requests_of_one_run_alone_are_told() {
    // given a twin that lacks a request and the end of another, in a table of its own with wider ids
    let id = |p: i32, l: u16, s: usize| p as u16 + l + s as u16;
    let folder = Folder::empty();
    let pd = Routing::new(0..2, 2, "u8").request("pd", "a", (3, 3), id).request("pd", "b", (3, 3), id);
    let twin = Routing::new(0..2, 2, "u16").request("twin", "a", (3, 2), id).request("twin", "z", (1, 2), id);
    folder.commit("routing_2x2_u8", &pd.rows(), 1);
    folder.commit("routing_2x2_u16", &twin.rows(), 1);
    let requests = [("pd", "a"), ("pd", "b"), ("twin", "a"), ("twin", "z")];
    let requests = requests.map(|(run, id)| json!({"run": run, "request_id": id, "status": "whole"}));
    folder.commit("requests", &rows_of("requests", &requests), 1);
    let catalog = open(&folder).await;

    let (outcome, text) = text(&catalog, &against("pd", "twin", Style::Text)).await;

    let lines: Vec<&str> = text.lines().skip(3).collect();
    let expected = [
        "a: 1 row only in pd",
        "b: 5 rows only in pd",
        "z: 2 rows only in twin",
        "",
        "1 request compared: 0 identical, 1 differing; 1 only in pd, 1 only in twin",
        "4 rows compared: 0 differing",
    ];
    assert_eq!((outcome, lines.as_slice()), (Outcome::Findings, expected.as_slice()));
}

#[tokio::test]
async fn the_run_to_compare_may_be_the_only_other_one() {
    let catalog = opened(twins(|_, p, l, s| (p as u16 + 5 * l + s as u16) % 8)).await;
    let unnamed = Report { scope: Scope::default(), against: Some("twin".to_owned()), style: Style::Json };

    let (_, document) = document(&catalog, &unnamed).await;
    assert_eq!(document["comparison"]["summary"]["run"], "pd");

    let error = against("pd", "nobody", Style::Text).write(&catalog, Vec::new()).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no run 'nobody': expected one of 'pd', 'twin'");
}
