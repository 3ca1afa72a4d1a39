//! The rules that need more than one request or more than one try: links, choices, attempts, blocks by hash, prefix
//! deltas, late and contradicting answers.

use std::sync::Arc;

use gatescope_routing::{
    finding::{Check, Severity},
    join::{Applied, BlockReference, Context, Finish, Join, Joined, Lost, Part, Policy, Rules, Start, Status},
    rows::Rows,
    span::{Anchor, BlockHash, KvLink, RequestKey, Role, Source, Span, Unknown},
};

use crate::deployment::{Deployment, alter, codes, join, source};

fn key(request_id: &str, choice: u32) -> RequestKey {
    RequestKey { run: Arc::from("default"), request_id: Arc::from(request_id), choice }
}

fn link(request_id: &str) -> KvLink {
    KvLink { engine_id: Arc::from("engine-p"), request_id: Arc::from(request_id) }
}

fn truth(joined: &Joined) -> Vec<u8> {
    joined.routing().map(|rows| rows.bytes().to_vec()).unwrap_or_default()
}

fn apply_all(join: &mut Join, key: &RequestKey, parts: impl IntoIterator<Item = Part>) {
    for part in parts {
        join.apply(key, part);
    }
}

fn pair(seed: u64) -> Deployment {
    Deployment::random(20, 9, 4, 4, seed)
}

/// Prefill's span and finish, then decode's.
fn split(deployment: &Deployment) -> (Vec<Part>, Vec<Part>) {
    let mut parts = deployment.answers();
    let decode = parts.split_off(2);
    (parts, decode)
}

#[test]
fn a_decode_that_names_its_prefill_is_joined_with_it_whichever_comes_first() {
    let deployment = pair(1);
    for decode_first in [false, true] {
        for link_first in [false, true] {
            let mut join = Join::new(Rules::default());
            let (prefill, decode) = split(&deployment);
            let (p, d) = (key("abc-p", 0), key("abc-d", 0));
            if link_first {
                join.link(&d, link("inner"));
                join.identify(&p, link("inner"));
            }
            let mut order = [(&p, prefill), (&d, decode)];
            if decode_first {
                order.reverse();
            }
            for (key, parts) in order {
                apply_all(&mut join, key, parts);
            }
            if !link_first {
                assert_eq!(join.take_ready(), vec![]);
                join.identify(&p, link("inner"));
                join.link(&d, link("inner"));
            }
            assert_eq!(join.take_ready(), vec![d.clone()], "decode first: {decode_first}, link first: {link_first}");
            let joined = join.close(&d, &Context::default()).unwrap();
            assert_eq!(truth(&joined), deployment.truth);
            assert_eq!(codes(&joined), vec![]);
            assert!(join.is_empty());
            assert_eq!(join.held_bytes(), 0);
        }
    }
}

#[test]
fn requests_of_two_runs_never_join() {
    let deployment = pair(2);
    let (prefill, decode) = split(&deployment);
    let mut join = Join::new(Rules::default());
    let twin = RequestKey { run: Arc::from("twin"), ..key("a", 0) };
    apply_all(&mut join, &key("a", 0), prefill);
    apply_all(&mut join, &twin, decode);
    assert_eq!(join.take_ready(), vec![]);
    assert_eq!(join.len(), 2);
}

#[test]
fn one_prefill_serves_every_choice() {
    let deployment = pair(3);
    for prefill_first in [true, false] {
        let mut join = Join::new(Rules::default());
        let (prefill, decode) = split(&deployment);
        if prefill_first {
            apply_all(&mut join, &key("a", 0), prefill.clone());
        }
        apply_all(&mut join, &key("a", 0), decode.clone());
        apply_all(&mut join, &key("a", 1), decode);
        if !prefill_first {
            assert_eq!(join.take_ready(), vec![]);
            apply_all(&mut join, &key("a", 0), prefill);
        }
        assert_eq!(join.take_ready(), vec![key("a", 0), key("a", 1)]);
        for choice in 0..2 {
            let joined = join.close(&key("a", choice), &Context::default()).unwrap();
            assert_eq!(truth(&joined), deployment.truth);
            assert_eq!(codes(&joined), vec![]);
        }
    }
}

#[test]
fn choices_of_another_prompt_do_not_take_the_rows_of_the_first() {
    // given
    let (first, other) = (Deployment::random(20, 9, 4, 4, 3), Deployment::random(12, 9, 4, 4, 4));
    let (prefill, decode) = split(&first);
    let (_, decode_of_other) = split(&other);
    for prefill_first in [false, true] {
        // when
        let mut join = Join::new(Rules::default());
        let mut told = [(key("abc", 0), prefill.clone()), (key("abc", 1), decode_of_other.clone())];
        if !prefill_first {
            told.reverse();
        }
        for (key, parts) in told {
            apply_all(&mut join, &key, parts);
        }
        apply_all(&mut join, &key("abc", 0), decode.clone());

        // then
        let whole = join.close(&key("abc", 0), &Context::default()).unwrap();
        let alone = join.close(&key("abc", 1), &Context::default()).unwrap();
        assert_eq!((truth(&whole), whole.status), (first.truth.clone(), Status::Whole));
        assert_eq!((codes(&alone), alone.status), (vec![Check::MissingRows, Check::OneRoleOnly], Status::Incomplete));
    }
}

#[test]
fn a_prefill_alone_is_whole_where_one_token_was_wanted_and_stays_open_for_a_decode() {
    let deployment = Deployment::random(20, 1, 4, 4, 4);
    let mut join = Join::new(Rules::default());
    let (prefill, decode) = split(&deployment);
    apply_all(&mut join, &key("a", 0), prefill);
    assert_eq!(join.take_ready(), vec![]);
    let alone = join.get(&key("a", 0)).unwrap().close(&Rules::default(), &Context::default());
    assert_eq!((alone.status, codes(&alone)), (Status::Whole, vec![]));
    assert_eq!(truth(&alone), deployment.truth);
    apply_all(&mut join, &key("a", 0), decode);
    assert_eq!(join.take_ready(), vec![key("a", 0)]);
    let both = join.close(&key("a", 0), &Context::default()).unwrap();
    assert_eq!((both.status, both.overlap_rows, codes(&both)), (Status::Whole, 1, vec![]));
}

#[test]
fn a_decode_without_its_prefill_says_so() {
    let deployment = pair(5);
    let joined = join(split(&deployment).1, Policy::Prefill);
    assert_eq!(codes(&joined), vec![Check::MissingRows, Check::OneRoleOnly]);
    assert_eq!(joined.gaps, vec![0..19]);
    assert_eq!(joined.status, Status::Incomplete);
}

#[test]
fn two_prefills_are_two_answers() {
    let deployment = pair(6);
    let (prefill, decode) = split(&deployment);
    let again = prefill.clone().into_iter().map(|part| from(part, source(Role::Prefill, "p1")));
    let joined = join(prefill.clone().into_iter().chain(again).chain(decode), Policy::Prefill);
    assert_eq!(codes(&joined), vec![Check::TwoAnswers]);
    assert_eq!(joined.status, Status::Conflict);
    assert_eq!(truth(&joined), deployment.truth);
}

#[test]
fn the_same_prefill_sent_twice_is_stored_once() {
    let deployment = pair(7);
    let mut join = Join::new(Rules::default());
    for _ in 0..2 {
        apply_all(&mut join, &key("a", 0), deployment.answers());
    }
    let joined = join.close(&key("a", 0), &Context::default()).unwrap();
    assert_eq!(joined.captures.len(), 2);
    assert_eq!(codes(&joined), vec![]);
}

#[test]
fn one_instance_that_sends_other_rows_under_the_same_name_contradicts_itself() {
    let deployment = pair(8);
    let mut parts = deployment.answers();
    let mut other = vec![parts[0].clone()];
    alter(&mut other, Role::Prefill, 3, 2, |list| list[0] = 99);
    parts.extend(other);
    let joined = join(parts, Policy::Prefill);
    assert_eq!(codes(&joined), vec![Check::TwoAnswers]);
    assert_eq!((joined.findings[0].position, joined.findings[0].layer), (Some(3), Some(2)));
    assert_eq!(truth(&joined), deployment.truth, "the first rows stay");
}

#[test]
fn a_later_attempt_is_compared_and_does_not_replace_the_first() {
    let deployment = pair(9);
    let mut parts = deployment.answers();
    let retry = Source { attempt: 1, ..source(Role::Decode, "d0") };
    let mut again = vec![Part::Span(deployment.span(&retry, 19, 25))];
    alter(&mut again, Role::Decode, 4, 1, |list| list[2] = 77);
    parts.splice(0..0, again);
    let joined = join(parts, Policy::Prefill);
    assert_eq!(codes(&joined), vec![Check::RecomputeDiffers]);
    assert_eq!((joined.findings[0].position, joined.findings[0].layer), (Some(23), Some(1)));
    assert_eq!(truth(&joined), deployment.truth);
    assert_eq!(joined.attempts, 2);
    assert_eq!(joined.status, Status::Whole);
}

#[test]
fn an_equal_recompute_is_silent() {
    let deployment = pair(10);
    let retry = Source { attempt: 1, ..source(Role::Decode, "d0") };
    let again = Part::Span(deployment.span(&retry, 19, 25));
    let joined = join(deployment.answers().into_iter().chain([again]), Policy::Prefill);
    assert_eq!(codes(&joined), vec![]);
}

#[test]
fn the_policy_decides_whose_row_is_accepted_in_the_overlap() {
    let deployment = Deployment { first_forward: 16, ..pair(11) };
    let mut parts = deployment.answers();
    alter(&mut parts, Role::Decode, 1, 2, |list| list[0] = 88);
    let by_prefill = join(parts.clone(), Policy::Prefill);
    let by_kv = join(parts, Policy::Kv);
    let row = |joined: &Joined| joined.routing().unwrap().experts(17, 2);
    assert_eq!(row(&by_prefill)[0], u16::from(deployment.truth[17 * 16 + 8]));
    assert_eq!(row(&by_kv)[0], 88);
    for joined in [by_prefill, by_kv] {
        assert_eq!(codes(&joined), vec![Check::OverlapDisagrees]);
        assert_eq!((joined.overlap_rows, joined.mismatched_rows), (4, 1));
        assert_eq!(joined.findings[0].severity, Severity::Warning);
        assert_eq!(joined.first_forward, Some(16));
    }
}

#[test]
fn blocks_named_by_hash_have_the_rows_that_were_sent_before_or_are_sent_later() {
    let deployment = Deployment { colocated: true, ..Deployment::random(32, 5, 4, 4, 12) };
    let colocated = source(Role::Colocated, "c0");
    let hash = |block: u8| BlockHash(Arc::from([block]));
    let block = |block: u8| {
        let start = u32::from(block) * 16;
        Part::Span(Span { block: Some(hash(block)), ..deployment.span(&colocated, start, start + 16) })
    };
    let named = |block: u8| {
        let start = u32::from(block) * 16;
        Part::Block(BlockReference { source: colocated.clone(), start, hash: hash(block), generation: 0 })
    };
    let rest = || [Part::Span(deployment.span(&colocated, 32, 36)), deployment.finish(&colocated, 5)];
    let mut join = Join::new(Rules::default());
    // The first request sends block 0, the second names it; block 1 is named before anyone has sent it.
    apply_all(&mut join, &key("second", 0), [named(0), named(1)]);
    apply_all(&mut join, &key("second", 0), rest());
    assert_eq!(join.take_ready(), vec![]);
    apply_all(&mut join, &key("first", 0), [block(0), block(1)]);
    apply_all(&mut join, &key("first", 0), rest());
    assert_eq!(join.take_ready(), vec![key("first", 0), key("second", 0)]);
    for id in ["first", "second"] {
        let joined = join.close(&key(id, 0), &Context::default()).unwrap();
        assert_eq!(truth(&joined), deployment.truth);
        assert_eq!(codes(&joined), vec![]);
    }
    // A block that nobody sends is a gap.
    apply_all(&mut join, &key("third", 0), [named(0), named(7)]);
    apply_all(&mut join, &key("third", 0), rest());
    let joined = join.close(&key("third", 0), &Context::default()).unwrap();
    assert_eq!(codes(&joined), vec![Check::MissingRows]);
    assert_eq!(joined.gaps, vec![16..32]);
}

#[test]
fn a_prefix_left_out_comes_from_the_request_that_has_it() {
    let deployment = Deployment { colocated: true, ..pair(13) };
    let colocated = source(Role::Colocated, "c0");
    let start = |parent: Option<&str>| {
        Part::Start(Start {
            source: colocated.clone(),
            prompt_tokens: Some(20),
            first_forward: None,
            prompt_start: Some(12),
            parent: parent.map(Arc::from),
        })
    };
    let delta = || [Part::Span(deployment.span(&colocated, 12, 28)), deployment.finish(&colocated, 9)];
    let before = join([Part::Span(deployment.span(&colocated, 0, 15)), finish(&colocated, 12, 4)], Policy::Prefill);
    assert_eq!(before.status, Status::Whole);

    let mut requests = Join::new(Rules::default());
    apply_all(&mut requests, &key("a", 0), [start(Some("before"))].into_iter().chain(delta()));
    let request = requests.get(&key("a", 0)).unwrap();
    assert_eq!(request.parent().map(|parent| &**parent), Some("before"));
    let context = Context { parent: Some(&before.segments), ..Context::default() };
    let joined = request.close(&Rules::default(), &context);
    assert_eq!(truth(&joined), deployment.truth);
    assert_eq!((joined.status, joined.prefix_omitted, codes(&joined)), (Status::Whole, 0, vec![]));

    let unknown = request.close(&Rules::default(), &Context::default());
    assert_eq!((codes(&unknown), unknown.prefix_omitted), (vec![Check::PrefixUnresolved], 12));

    let declared = join([start(None)].into_iter().chain(delta()), Policy::Prefill);
    assert_eq!((declared.status, declared.prefix_omitted, codes(&declared)), (Status::Whole, 12, vec![]));
    assert_eq!(declared.rows(), 16);
}

#[test]
fn no_routing_at_all_is_said_once() {
    let (p, d) = (source(Role::Prefill, "p0"), source(Role::Decode, "d0"));
    let joined = join([finish(&p, 20, 1), finish(&d, 20, 9)], Policy::Prefill);
    assert_eq!(codes(&joined), vec![Check::NoRouting]);
    assert_eq!((joined.findings[0].position, joined.findings[0].positions), (Some(0), 28));
    let empty = join([finish(&source(Role::Colocated, "c0"), 1, 0)], Policy::Prefill);
    assert_eq!(codes(&empty), vec![], "a prompt of one token without a completion has no row");
}

#[test]
fn unknown_marks_and_dropped_rows_explain_their_gaps() {
    let deployment = Deployment { colocated: true, ..pair(14) };
    let colocated = source(Role::Colocated, "c0");
    let unknown = vec![Unknown { rows: 2..5, layer: 1 }];
    let span = Span { unknown, ..deployment.span(&colocated, 0, 20) };
    let lost = Part::Lost(Lost { source: colocated.clone(), start: 22, positions: 2 });
    let rest = [deployment.span(&colocated, 20, 22), deployment.span(&colocated, 24, 28)].map(Part::Span);
    let parts = [Part::Span(span), lost, deployment.finish(&colocated, 9)].into_iter().chain(rest);
    let joined = join(parts, Policy::Prefill);
    assert_eq!(codes(&joined), vec![Check::UnknownMarks, Check::CaptureLost]);
    assert_eq!(joined.gaps, vec![2..5, 22..24]);
    assert_eq!((joined.findings[0].position, joined.findings[0].layer), (Some(2), Some(1)));
    assert_eq!(joined.status, Status::Incomplete);
}

#[test]
fn rows_of_two_generations_do_not_mix() {
    let deployment = Deployment { colocated: true, ..pair(15) };
    let colocated = source(Role::Colocated, "c0");
    let later = Span { generation: 1, ..deployment.span(&colocated, 16, 28) };
    let parts = [Part::Span(deployment.span(&colocated, 0, 16)), Part::Span(later), deployment.finish(&colocated, 9)];
    let joined = join(parts, Policy::Prefill);
    assert_eq!(codes(&joined), vec![Check::WrongGeneration]);
    assert_eq!(joined.findings[0].position, Some(16));
}

#[test]
fn a_collapsed_prompt_is_found_unless_its_tokens_are_all_one() {
    let deployment = pair(16);
    let (mut parts, _) = split(&deployment);
    let row = deployment.truth[..16].to_vec();
    let Part::Span(span) = &mut parts[0] else { unreachable!() };
    span.rows = Rows::new(row.repeat(20).into(), deployment.shape(), deployment.width).unwrap();
    assert_eq!(codes(&join(parts.clone(), Policy::Prefill)), vec![Check::Collapse]);
    let Part::Finish(finish) = &mut parts[1] else { unreachable!() };
    finish.uniform_prompt = Some(true);
    assert_eq!(codes(&join(parts, Policy::Prefill)), vec![]);
}

#[test]
fn a_prompt_of_zeros_on_prefill_is_found_and_the_decodes_rows_tell_it_from_a_dense_model() {
    let deployment = pair(17);
    let mut parts = deployment.answers();
    for row in 0..20 {
        for layer in 0..4 {
            alter(&mut parts, Role::Prefill, row, layer, |list| list.fill(0));
        }
    }
    let joined = join(parts, Policy::Prefill);
    assert!(codes(&joined).contains(&Check::ZeroRows));
    let zero = &joined.findings[0];
    assert_eq!((zero.position, zero.positions, zero.layer), (Some(0), 20, Some(0)));
}

#[test]
fn prompts_of_two_lengths_are_not_one_request() {
    let deployment = pair(18);
    let mut parts = deployment.answers();
    let Part::Finish(finish) = &mut parts[3] else { unreachable!() };
    finish.prompt_tokens = Some(24);
    let joined = join(parts, Policy::Prefill);
    assert!(codes(&joined).contains(&Check::TwoAnswers));
    assert_eq!(joined.status, Status::Conflict);
}

#[test]
fn a_trainer_is_compared_and_never_accepted() {
    let deployment = pair(19);
    let mut parts = deployment.answers();
    let trainer = source(Role::Trainer, "t0");
    let mut recomputed = vec![Part::Span(deployment.span(&trainer, 0, 28))];
    assert_eq!(codes(&join(parts.iter().chain(&recomputed).cloned(), Policy::Prefill)), vec![]);
    alter(&mut recomputed, Role::Trainer, 6, 3, |list| list[1] = 66);
    parts.splice(0..0, recomputed);
    let joined = join(parts, Policy::Prefill);
    assert_eq!(codes(&joined), vec![Check::TrainerDiffers]);
    assert_eq!((joined.findings[0].position, joined.findings[0].layer), (Some(6), Some(3)));
    assert_eq!(truth(&joined), deployment.truth);
}

#[test]
fn a_part_told_twice_changes_nothing() {
    let deployment = pair(20);
    let mut join = Join::new(Rules::default());
    for part in deployment.answers() {
        assert_eq!(join.apply(&key("a", 0), part.clone()), Applied::Taken);
        assert_eq!(join.apply(&key("a", 0), part), Applied::Duplicate);
    }
}

#[test]
fn rows_of_an_answer_without_any_length_tell_the_prompts_length() {
    let deployment = Deployment { colocated: true, ..pair(21) };
    let colocated = source(Role::Colocated, "c0");
    let span = Span { anchor: Anchor::End { completion_tokens: 9 }, ..deployment.span(&colocated, 0, 28) };
    let finish = Finish { source: colocated, prompt_tokens: None, completion_tokens: Some(9), uniform_prompt: None };
    let joined = join([Part::Span(span), Part::Finish(finish)], Policy::Prefill);
    assert_eq!((joined.prompt_tokens, joined.status, codes(&joined)), (Some(20), Status::Whole, vec![]));
}

fn finish(source: &Source, prompt: u32, completion: u32) -> Part {
    Part::Finish(Finish {
        source: source.clone(),
        prompt_tokens: Some(prompt),
        completion_tokens: Some(completion),
        uniform_prompt: None,
    })
}

/// The same part from another source.
fn from(part: Part, source: Source) -> Part {
    match part {
        Part::Span(span) => Part::Span(Span { source, ..span }),
        Part::Finish(finish) => Part::Finish(Finish { source, ..finish }),
        other => other,
    }
}

#[test]
fn a_decode_that_only_began_leaves_the_request_incomplete() {
    let deployment = pair(22);
    let (mut parts, _) = split(&deployment);
    parts.push(Part::Finish(Finish {
        source: source(Role::Decode, "d0"),
        prompt_tokens: None,
        completion_tokens: None,
        uniform_prompt: None,
    }));
    let joined = join(parts, Policy::Prefill);
    assert_eq!((joined.status, codes(&joined)), (Status::Incomplete, vec![Check::MissingRows]));
}

#[test]
fn rows_marked_as_unknown_are_not_rows_of_zeros() {
    let deployment = Deployment { colocated: true, ..pair(23) };
    let colocated = source(Role::Colocated, "c0");
    let mut parts = vec![Part::Span(deployment.span(&colocated, 0, 28)), deployment.finish(&colocated, 9)];
    for (row, layer) in (0..4).flat_map(|row| (0..4).map(move |layer| (row, layer))) {
        alter(&mut parts, Role::Colocated, row, layer, |list| list.fill(0));
    }
    let Part::Span(span) = &mut parts[0] else { unreachable!() };
    span.unknown = vec![Unknown { rows: 0..4, layer: 0 }];
    assert_eq!(codes(&join(parts, Policy::Prefill)), vec![Check::UnknownMarks]);
}

#[test]
fn an_empty_completion_is_whole_with_or_without_the_last_token_of_the_prompt() {
    let deployment = Deployment { colocated: true, ..pair(24) };
    let colocated = source(Role::Colocated, "c0");
    for rows in [19, 20] {
        let span = Span { anchor: Anchor::End { completion_tokens: 0 }, ..deployment.span(&colocated, 0, rows) };
        let joined = join([Part::Span(span), finish(&colocated, 20, 0)], Policy::Prefill);
        assert_eq!((joined.status, joined.rows(), codes(&joined)), (Status::Whole, rows, vec![]));
    }
}
