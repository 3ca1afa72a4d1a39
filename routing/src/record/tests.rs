use super::*;

fn options() -> RecordOptions {
    RecordOptions::default()
}

#[test]
fn real_answers_are_read() {
    let text = include_str!("../../../tests/fixtures/vllm-0.31/pair.pd.jsonl");
    for line in text.lines() {
        let record = read_record(line.as_bytes(), &options()).unwrap();
        eprintln!("{record:?}");
    }
}
