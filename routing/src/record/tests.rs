use serde_json::{Value, json};

use super::*;
use crate::{engine, rows::Rows, shape::IdWidth, span::Anchor};

/// Rows of one layer and two slots.
fn rows(count: u8) -> Rows {
    Rows::new((0..2 * count).collect::<Vec<u8>>().into(), RowShape::new(1, 2).unwrap(), IdWidth::U8).unwrap()
}

/// A completions answer of `prompt` and `completion` tokens with `rows` rows.
fn answer(prompt: u32, completion: u32, rows_of: u8) -> Value {
    json!({
        "id": "cmpl-abc",
        "created": 1_796_092_093,
        "model": "tiny",
        "choices": [{
            "index": 0,
            "token_ids": vec![7; completion as usize],
            "prompt_token_ids": (0..prompt).collect::<Vec<_>>(),
            "routed_experts": engine::vllm::encode(&rows(rows_of)),
        }],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    })
}

fn line(role: &str, response: Value) -> Value {
    json!({"role": role, "response": response})
}

fn with(mut value: Value, pointer: &str, new: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap()[name] = new;
    value
}

fn without(mut value: Value, pointer: &str) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
    value
}

fn read(line: &Value) -> Record {
    read_record(line.to_string().as_bytes(), &RecordOptions::default()).unwrap()
}

fn refusal(line: &Value) -> String {
    refusal_of(line.to_string().as_bytes())
}

fn refusal_of(line: &[u8]) -> String {
    read_record(line, &RecordOptions::default()).unwrap_err().to_string()
}

/// The only choice of a line.
fn choice(line: &Value) -> RecordedChoice {
    let mut record = read(line);
    assert_eq!(record.choices.len(), 1);
    record.choices.remove(0)
}

fn problem(line: &Value) -> String {
    choice(line).spans.unwrap_err().to_string()
}

fn anchor(line: &Value) -> Anchor {
    choice(line).spans.unwrap()[0].anchor
}

#[test]
fn what_the_line_says_comes_before_what_the_answer_says() {
    let line = json!({
        "role": "decode", "instance": "d1", "request_id": "mine", "run": "july", "attempt": 2, "parent": "earlier",
        "kv_transfer_params": {"remote_engine_id": "p0", "remote_request_id": "cmpl-mine-0-85eeda8a"},
        "note": {"kept": false},
        "response": answer(4, 2, 2),
    });

    let record = read(&line);

    assert_eq!((&*record.request_id, record.run.as_deref()), ("mine", Some("july")));
    assert_eq!(record.source, Source { role: Role::Decode, instance: "d1".into(), attempt: 2 });
    assert_eq!(record.parent.as_deref(), Some("earlier"));
    let link = KvLink { engine_id: "p0".into(), request_id: "cmpl-mine-0-85eeda8a".into() };
    assert_eq!((record.identity, record.link), (None, Some(link)));
    assert_eq!(record.model.as_deref(), Some("tiny"));
    assert_eq!(record.created_at, Some(1_796_092_093_000_000));
}

#[test]
fn request_ids_lose_the_prefix_of_their_engine() {
    for (id, bare) in [
        ("cmpl-abc", "abc"),
        ("chatcmpl-abc", "abc"),
        ("generate-tokens-abc", "abc"),
        ("abc", "abc"),
        ("cmpl-", "cmpl-"),
        ("chatcmpl-cmpl-abc", "cmpl-abc"),
    ] {
        assert_eq!(&*read(&line("prefill", with(answer(4, 1, 4), "/id", json!(id)))).request_id, bare);
    }
    let both = with(answer(4, 1, 4), "/request_id", json!("generate-tokens-other"));
    assert_eq!(&*read(&line("prefill", both)).request_id, "other");
}

#[test]
fn a_prefill_is_named_by_its_kv_transfer_params() {
    let params = json!({"remote_engine_id": "engine", "remote_request_id": "cmpl-abc-0-1", "remote_block_ids": [[1]]});
    let answer = with(answer(4, 1, 4), "/kv_transfer_params", params.clone());

    let prefill = read(&line("prefill", answer.clone()));
    let decode = read(&line("decode", answer.clone()));
    let nameless = with(line("prefill", answer), "/response/kv_transfer_params/remote_engine_id", Value::Null);

    let link = KvLink { engine_id: "engine".into(), request_id: "cmpl-abc-0-1".into() };
    assert_eq!((&*prefill.source.instance, prefill.identity, prefill.link), ("engine", Some(link.clone()), None));
    assert_eq!((&*decode.source.instance, decode.identity, decode.link), ("decode", None, Some(link)));
    assert_eq!((read(&nameless).identity, &*read(&nameless).source.instance), (None, "prefill"));
}

#[test]
fn an_answer_without_a_start_is_anchored_at_its_end() {
    for role in ["prefill", "decode", "colocated", "trainer"] {
        assert_eq!(anchor(&line(role, answer(4, 3, 2))), Anchor::End { completion_tokens: 3 });
    }
}

#[test]
fn the_start_that_the_caller_asked_for_places_the_rows_of_who_computes_the_prompt() {
    for name in ["routed_experts_prompt_start", "routed_experts_start_len"] {
        let asked = |role| with(line(role, answer(4, 1, 2)), &format!("/{name}"), json!(2));

        assert_eq!(anchor(&asked("prefill")), Anchor::Start(2));
        assert_eq!(anchor(&asked("colocated")), Anchor::Start(2));
        assert_eq!(anchor(&asked("decode")), Anchor::End { completion_tokens: 1 });
        for role in ["prefill", "colocated", "decode"] {
            assert_eq!(choice(&asked(role)).prompt_start, Some(2));
        }
    }
}

#[test]
fn a_start_that_the_engine_states_is_declared_where_it_computes_the_prompt() {
    let stated = |role, start: u32| {
        let packed = serde_json::to_value(engine::prime_rl::encode(&rows(2), start)).unwrap();
        line(role, with(answer(4, 1, 2), "/choices/0/routed_experts", packed))
    };
    assert_eq!(
        (anchor(&stated("prefill", 2)), choice(&stated("prefill", 2)).prompt_start),
        (Anchor::Start(2), Some(2))
    );
    assert_eq!((anchor(&stated("prefill", 0)), choice(&stated("prefill", 0)).prompt_start), (Anchor::Start(0), None));
    assert_eq!((anchor(&stated("decode", 2)), choice(&stated("decode", 2)).prompt_start), (Anchor::Start(2), None));
}

#[test]
fn lengths_come_from_whatever_says_them() {
    let bare = without(answer(4, 3, 2), "/choices/0/prompt_token_ids");
    let no_ids = without(bare.clone(), "/choices/0/token_ids");
    let total = without(no_ids.clone(), "/usage/completion_tokens");
    let nothing = without(no_ids.clone(), "/usage");
    let told = with(with(line("decode", nothing.clone()), "/prompt_tokens", json!(4)), "/completion_tokens", json!(3));
    let log_probabilities = with(nothing.clone(), "/choices/0/logprobs", json!({"content": [{}, {}, {}]}));
    let shared_ids = with(nothing.clone(), "/prompt_token_ids", json!([1, 2, 3, 4]));
    let lengths = |line: &Value| (choice(line).prompt_tokens, choice(line).completion_tokens);

    assert_eq!(lengths(&line("decode", bare)), (Some(4), Some(3)));
    assert_eq!(lengths(&line("decode", no_ids)), (Some(4), Some(3)));
    assert_eq!(lengths(&line("decode", total)), (Some(4), Some(3)));
    assert_eq!(lengths(&told), (Some(4), Some(3)));
    assert_eq!(lengths(&line("decode", log_probabilities)), (None, Some(3)));
    assert_eq!(lengths(&line("decode", shared_ids)), (Some(4), None));
    assert_eq!(
        problem(&line("decode", nothing)),
        "response.choices[0].routed_experts: 2 rows without a start, and no number of sampled tokens to place them by: \
         expected token_ids, usage.completion_tokens or meta_info.completion_tokens in the answer, or completion_tokens \
         in the line"
    );
}

#[test]
fn lengths_that_disagree_are_both_named() {
    assert_eq!(
        refusal(&with(line("decode", answer(4, 3, 2)), "/prompt_tokens", json!(5))),
        "request abc: response.usage.prompt_tokens: 4 tokens, but prompt_tokens says 5: expected both to agree"
    );
    assert_eq!(
        refusal(&with(line("decode", answer(4, 3, 2)), "/response/choices/0/prompt_token_ids", json!([1, 2]))),
        "request abc: response.choices[0].prompt_token_ids: 2 tokens, but response.usage.prompt_tokens says 4: expected \
         both to agree"
    );
    assert_eq!(
        refusal(&with(line("decode", answer(4, 3, 2)), "/completion_tokens", json!(5))),
        "request abc: response.choices[0].token_ids: 3 tokens, but completion_tokens says 5: expected both to agree"
    );
    let less = without(without(answer(4, 3, 2), "/choices/0/token_ids"), "/usage/completion_tokens");
    assert_eq!(
        refusal(&line("decode", with(less, "/usage/total_tokens", json!(3)))),
        "request abc: response.usage.total_tokens: 3 tokens: expected no less than the prompt's 4"
    );
}

#[test]
fn a_prompt_of_one_token_over_and_over_is_uniform() {
    let uniform = |ids: Value| {
        let prompt = ids.as_array().unwrap().len() as u32;
        choice(&line("prefill", with(answer(prompt, 1, 2), "/choices/0/prompt_token_ids", ids))).uniform_prompt
    };
    assert_eq!(uniform(json!([5, 5, 5])), Some(true));
    assert_eq!(uniform(json!([5, 5, 55])), Some(false));
    assert_eq!(uniform(json!([])), None);
    assert_eq!(choice(&line("prefill", without(answer(4, 1, 2), "/choices/0/prompt_token_ids"))).uniform_prompt, None);
}

#[test]
fn an_answer_without_routing_has_no_span() {
    let null = with(answer(4, 1, 4), "/choices/0/routed_experts", Value::Null);
    let absent = without(answer(4, 1, 4), "/choices/0/routed_experts");
    let empty = answer(4, 1, 0);
    for answer in [null, absent, empty] {
        let choice = choice(&line("prefill", answer));
        assert_eq!(choice.spans.unwrap().len(), 0);
        assert_eq!((choice.prompt_tokens, choice.completion_tokens), (Some(4), Some(1)));
    }
}

#[test]
fn a_broken_choice_leaves_the_others() {
    let mut answer = without(answer(4, 3, 2), "/usage");
    for (index, routing) in [json!("AAA"), json!(5), json!({"data": ""}), json!([[1]])].into_iter().enumerate() {
        let mut choice = answer["choices"][0].clone();
        choice["index"] = json!(index + 1);
        choice["routed_experts"] = routing;
        answer["choices"].as_array_mut().unwrap().push(choice);
    }

    let record = read(&line("decode", answer));

    let problems: Vec<String> =
        record.choices[1..].iter().map(|choice| choice.spans.as_ref().unwrap_err().to_string()).collect();
    assert_eq!(record.choices[0].spans.as_ref().unwrap()[0].rows, rows(2));
    assert!(record.choices.iter().all(|choice| choice.completion_tokens == Some(3)));
    assert_eq!(
        problems,
        [
            "response.choices[1].routed_experts: base64 of 3 characters: expected a multiple of 4 (cut short, or without \
             its padding)",
            "response.choices[2].routed_experts: a number: expected base64 (vLLM), an object (prime-rl) or nested lists \
             (vLLM 0.21)",
            "response.choices[3].routed_experts: an object without data or shape: expected prime-rl's {\"data\", \
             \"shape\"}",
            "response.choices[4].routed_experts: at byte 2 of the nested lists: expected a list of ids",
        ]
    );
}

#[test]
fn packed_objects_that_are_none_are_refused() {
    let refused = |packed: Value| problem(&line("decode", with(answer(4, 3, 2), "/choices/0/routed_experts", packed)));
    for (packed, message) in [
        (json!({"data": "", "shape": [1, 2]}), "shape: expected three whole numbers, [rows, layers, top_k]"),
        (json!({"data": "", "shape": [1, 2, 3, 4]}), "shape: expected three whole numbers, [rows, layers, top_k]"),
        (json!({"data": "", "shape": [1, -2, 3]}), "shape: expected three whole numbers, [rows, layers, top_k]"),
        (json!({"data": 5, "shape": [0, 2, 3]}), "data: expected a string"),
        (
            json!({"data": "", "shape": [0, 2, 3], "start": -1}),
            "routed_experts.start: -1: expected a whole number from 0 to 1073741823",
        ),
        (json!({"data": "", "shape": [1, 2, 3], "dtype": "f4"}), "dtype \"f4\": expected uint8 or uint16"),
    ] {
        let problem = refused(packed);
        assert!(problem.starts_with("response.choices[0].routed_experts"), "{problem}");
        assert_eq!(problem.matches("response").count(), 1, "{problem}");
        assert!(problem.ends_with(message), "{problem}");
    }
}

#[test]
fn nested_lists_are_the_completions_behind_those_of_the_prompt() {
    let lists = json!([[[1, 2]], [[3, 4]]]);
    let alone = with(answer(2, 3, 0), "/choices/0/routed_experts", lists.clone());
    let apart = with(alone.clone(), "/prompt_routed_experts", json!([[[-1, -1]], [[3, 400]]]));
    let one_token = with(apart.clone(), "/choices/0/routed_experts", Value::Null);

    let spans = choice(&line("colocated", apart)).spans.unwrap();

    assert_eq!((spans[0].anchor, spans[1].anchor), (Anchor::Start(0), Anchor::Start(2)));
    assert_eq!((spans[0].rows.width(), spans[1].rows.width()), (IdWidth::U16, IdWidth::U16));
    assert_eq!((spans[0].unknown.len(), spans[1].unknown.len()), (1, 0));
    assert_eq!(anchor(&line("colocated", alone)), Anchor::End { completion_tokens: 3 });
    assert_eq!(choice(&line("colocated", one_token)).spans.unwrap().len(), 1);
}

#[test]
fn sglangs_ids_need_a_shape() {
    let meta_info = json!({
        "id": "abc", "prompt_tokens": 2, "completion_tokens": 2, "routed_experts": engine::sglang::encode(&rows(3)),
    });
    let line = line("colocated", json!({"text": "", "meta_info": meta_info}));
    let shape = RowShape::new(1, 2).unwrap();

    let with_shape = read_record(line.to_string().as_bytes(), &RecordOptions { shape: Some(shape) }).unwrap();

    assert_eq!(with_shape.choices[0].spans.as_ref().unwrap()[0].rows, rows(3));
    assert_eq!(&*with_shape.request_id, "abc");
    assert_eq!(
        problem(&line),
        "response.meta_info.routed_experts: 6 ids without a shape (2 ids a row if there are 3 rows): expected --shape \
         LAYERSxTOP_K or --model-config"
    );
}

#[test]
fn sglangs_list_needs_an_id_for_all() {
    let item = |id: &str| json!({"meta_info": {"id": id, "prompt_tokens": 2, "completion_tokens": 2}});
    let list = json!([item("a"), item("b")]);

    let named = with(line("colocated", list.clone()), "/request_id", json!("abc"));

    assert_eq!(read(&named).choices.iter().map(|choice| choice.choice).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(&*read(&line("colocated", json!([item("a")]))).request_id, "a");
    assert_eq!(
        refusal(&line("colocated", list)),
        "response[1].meta_info.id: \"b\", but response[0].meta_info.id is \"a\": expected a request_id in the line, as \
         the answers have their own"
    );
    assert_eq!(refusal(&line("colocated", json!([]))), "response: empty: expected at least one answer");
    assert_eq!(
        refusal(&line("colocated", json!([{"text": ""}]))),
        "response[0]: no meta_info: expected answers of SGLang's /generate"
    );
}

#[test]
fn errors_of_the_engine_are_quoted() {
    let abort = json!({"meta_info": {"id": "abc", "finish_reason": {"type": "abort", "message": "out of memory"}}});
    for (response, message) in [
        (json!({"error": "no"}), "response: the engine answered with an error: no"),
        (
            json!({"error": {"message": "too long", "code": 400}}),
            "response: the engine answered with an error: too long",
        ),
        (json!({"error": {"code": 400}}), "response: the engine answered with an error: {\"code\":400}"),
        (json!({"error": "two\nlines\u{1b}[2J"}), "response: the engine answered with an error: two lines [2J"),
        (json!({"object": "error", "message": "gone"}), "response: the engine answered with an error: gone"),
        (json!({"detail": "Not Found"}), "response: the engine answered with an error: Not Found"),
        (json!({"detail": [{"loc": 1}]}), "response: the engine answered with an error: [{\"loc\":1}]"),
        (abort, "response.meta_info.finish_reason: the engine answered with an error (abort): out of memory"),
    ] {
        assert_eq!(
            refusal(&with(line("decode", response), "/request_id", json!("r"))),
            format!("request r: {message}")
        );
    }
    let long = refusal(&line("decode", json!({"error": "é".repeat(9999)})));
    assert_eq!(long.chars().filter(|&character| character == 'é').count(), 200);
    assert_eq!(choice(&line("decode", with(answer(4, 3, 2), "/error", Value::Null))).spans.unwrap().len(), 1);
}

#[test]
fn one_aborted_sequence_leaves_the_others() {
    let item = |finish: &str| json!({"meta_info": {"prompt_tokens": 2, "finish_reason": {"type": finish}}});
    let list = json!([item("length"), item("abort"), {"error": "lost"}]);

    let record = read(&with(line("colocated", list), "/request_id", json!("abc")));

    assert_eq!(record.choices[0].spans.as_ref().unwrap().len(), 0);
    assert_eq!(
        record.choices[1].spans.as_ref().unwrap_err().to_string(),
        "response[1].meta_info.finish_reason: the engine answered with an error (abort): no reason given"
    );
    assert_eq!(
        record.choices[2].spans.as_ref().unwrap_err().to_string(),
        "response[2]: the engine answered with an error: lost"
    );
}

#[test]
fn lines_that_are_no_recorded_responses_are_refused() {
    let good = with(line("decode", answer(4, 3, 2)), "/request_id", json!("r"));
    let changed = |pointer: &str, value: Value| refusal(&with(good.clone(), pointer, value));
    let role = "expected prefill, decode, colocated or trainer";

    assert_eq!(refusal(&without(good.clone(), "/role")), format!("request r: role: missing: {role}"));
    assert_eq!(changed("/role", json!("encode")), format!("request r: role: \"encode\": {role}"));
    assert_eq!(changed("/role", json!(1)), format!("request r: role: {role}"));
    assert_eq!(
        refusal(&without(good.clone(), "/response")),
        "request r: response: missing: expected the engine's answer"
    );
    for (response, kind) in [(json!("x"), "a string"), (json!(1), "a number"), (json!(true), "a boolean")] {
        assert_eq!(
            changed("/response", response),
            format!(
                "request r: response: {kind}: expected an answer with choices (vLLM, OpenAI API) or meta_info (SGLang)"
            )
        );
    }
    assert_eq!(
        changed("/response", json!({"id": "x"})),
        "request r: response: expected an answer with choices (vLLM, OpenAI API) or meta_info (SGLang)"
    );
    assert_eq!(
        changed("/response/choices", json!([])),
        "request r: response.choices: empty: expected at least one choice"
    );
    assert_eq!(changed("/response/choices", json!({})), "request r: response.choices: an object: expected a list");
    assert_eq!(
        changed("/response/choices", json!([1])),
        "request r: response.choices[0]: a number: expected an object"
    );
    assert_eq!(
        changed("/response/choices", json!([{}, {"index": 1}, {"index": 0}])),
        "request r: response.choices[2]: index 0, as response.choices[0] has: expected another"
    );
    assert_eq!(
        changed("/response/choices", json!(vec![json!({}); 1025])),
        "request r: response.choices[1024]: expected at most 1024 sequences in an answer"
    );
    assert_eq!(changed("/attempt", json!(-1)), "request r: attempt: -1: expected a whole number from 0 to 1073741823");
    assert_eq!(changed("/run", json!(5)), "request r: run: a number: expected a string");
    assert_eq!(
        changed("/run", json!("a\nb")),
        "request r: run: a control character: expected an id or name without any"
    );
    assert_eq!(changed("/run", json!("")), "request r: run: empty: expected an id or name");
    assert_eq!(
        changed("/run", json!("x".repeat(1025))),
        "request r: run: 1027 bytes: expected an id or name of at most 1024"
    );
    assert_eq!(changed("/request_id", json!(5)), "request_id: a number: expected a string");
    assert_eq!(changed("/response/usage", json!(5)), "request r: response.usage: a number: expected an object");
    assert_eq!(
        changed("/response/usage/prompt_tokens", json!(4.5)),
        "request r: response.usage.prompt_tokens: 4.5: expected a whole number from 0 to 1073741823"
    );
    assert_eq!(
        changed("/response/choices/0/token_ids", json!([1, "2"])),
        "request r: response.choices[0].token_ids: a string at 1: expected token ids"
    );
    assert_eq!(
        changed("/response/created", json!(1e300)),
        "request r: response.created: out of range: expected seconds since 1970"
    );
    assert_eq!(
        refusal(&line("decode", without(answer(4, 3, 2), "/id"))),
        "request_id: missing: expected it in the line, or an id in the answer"
    );
}

#[test]
fn lines_that_are_no_json_are_refused() {
    assert_eq!(refusal_of(b""), "an empty line: expected a JSON object");
    assert_eq!(refusal_of(b" \r"), "an empty line: expected a JSON object");
    assert_eq!(refusal_of(b"[]"), "the line is a list: expected an object");
    assert_eq!(refusal_of(b"role,response"), "not JSON at byte 0: expected a value");
    assert_eq!(refusal_of(b"{\"request_id\": \"r\", \"x\": \"\xff\"}"), "request r: invalid UTF-8 at byte 26");
    assert_eq!(
        refusal_of(b"{\"request_id\": \"r\", \"x\": 1 2}"),
        "request r: not JSON at byte 27: expected ',' or '}'"
    );
    assert_eq!(
        refusal_of(format!("{{\"request_id\": \"r\", \"x\": {}", "[".repeat(200)).as_bytes()),
        "request r: nested deeper than 100 levels at byte 124"
    );
}

#[test]
fn a_line_cut_short_anywhere_is_refused_by_name_where_its_name_is_left() {
    let whole = with(line("decode", answer(4, 3, 2)), "/request_id", json!("r")).to_string();
    let behind_name = whole.find(r#""request_id":"r""#).unwrap() + r#""request_id":"r""#.len();
    for length in 1..whole.len() {
        let error = refusal_of(&whole.as_bytes()[..length]);
        assert!(error.contains("cut short: expected"), "{error}");
        assert_eq!(error.starts_with("request r: "), length >= behind_name, "{}: {error}", &whole[..length]);
    }
    let unnamed = r#"{"role": "decode", "response": {"id": "cmpl-abc", "choices": [{"token_ids": [1, 2"#;
    assert_eq!(refusal_of(unnamed.as_bytes()), "request abc: cut short: expected ',' or ']', but the line ends");
}
