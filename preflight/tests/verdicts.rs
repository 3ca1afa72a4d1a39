//! Command lines as people write them, and what must be said of them.

#![allow(clippy::unwrap_used)]

use gatescope_preflight::{Configuration, ConfigurationError, Engine, Level, Question, Report, Role, Version, examine};

fn report(command: &str, minor: u16) -> Report {
    let configuration = Configuration::from_arguments([command]).unwrap();
    examine(&configuration, &Question { version: Some(Version::new(0, minor, 0)), ..Question::default() })
}

fn rules(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.rule).collect()
}

const NIXL: &str = r#"vllm serve Qwen/Qwen3-30B-A3B --enable-return-routed-experts -tp 4 --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"#;

#[test]
fn nixl_is_refused_by_newer_versions_in_their_words_and_works_with_the_plugin() {
    for minor in 31..=33 {
        let report = report(NIXL, minor);
        assert_eq!((report.level, rules(&report)), (Level::Plugin, vec!["nixl"]));
        assert_eq!(
            report.findings[0].says,
            "--enable-return-routed-experts is incompatible with NixlConnector; PD auxiliary output is not supported."
        );
    }
    let with = report(&format!("GATESCOPE_COLLECTOR=grpc://10.0.0.1:7879 {NIXL}"), 31);
    assert_eq!((with.level, with.findings.len()), (Level::Works, 0));
}

#[test]
fn every_kv_connector_is_refused_by_older_versions_in_their_words() {
    for minor in 22..=30 {
        let report = report(NIXL, minor);
        assert_eq!((report.level, rules(&report)), (Level::Cannot, vec!["kv-connector"]));
        assert_eq!(
            report.findings[0].says,
            "--enable-return-routed-experts is incompatible with KV connectors (PD disaggregation, KV cache offload)."
        );
    }
    let offloading = "vllm serve m --enable-return-routed-experts --kv-offloading-size 8";
    assert_eq!(report(offloading, 30).level, Level::Cannot);
    assert_eq!(report(offloading, 31).level, Level::Works);
}

#[test]
fn every_version_has_a_verdict_on_an_engine_by_itself() {
    let plain = "vllm serve m --enable-return-routed-experts --no-async-scheduling";
    for minor in 11..=33 {
        let expected = if minor <= 20 { Level::Cannot } else { Level::Works };
        assert_eq!(report(plain, minor).level, expected, "0.{minor}");
    }
    assert_eq!(rules(&report("vllm serve m --enable-return-routed-experts", 21)), ["async-scheduling"]);
    assert_eq!(rules(&report("vllm serve m --async-scheduling", 31)), ["flag"]);
    assert_eq!(report("vllm serve m", 31).level, Level::Change);
}

#[test]
fn children_of_a_multi_connector_are_looked_at() {
    let multi = |child: &str| {
        format!(
            r#"vllm serve m --enable-return-routed-experts --kv-transfer-config '{{"kv_connector": "MultiConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {{"connectors": [{{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}}, {{"kv_connector": "{child}", "kv_role": "kv_both"}}]}}}}'"#
        )
    };
    let nixl = report(&multi("NixlPullConnector"), 32);
    assert_eq!(rules(&nixl), ["nixl"]);
    assert_eq!(nixl.findings[0].because, "KV connector NixlPullConnector inside MultiConnector");
    assert_eq!(rules(&report(&multi("MooncakeConnector"), 32)), ["pd-connector"]);
    assert_eq!(rules(&report(&multi("SomethingElse"), 32)), ["other-connector"]);
    assert_eq!(report(&multi("LMCacheMPConnector"), 32).level, Level::Works);
}

#[test]
fn what_newer_versions_refuse_is_named_whatever_the_spelling() {
    for (flags, rule) in [
        ("-pp 2", "pipeline-parallelism"),
        ("--pipeline-parallel-size=2", "pipeline-parallelism"),
        ("--pipeline_parallel_size 2", "pipeline-parallelism"),
        ("-dcp 2", "context-parallelism"),
        ("--prefill-context-parallel-size 4", "context-parallelism"),
        ("--no-enable-prefix-caching", "prefix-caching"),
        ("--runner pooling", "runner"),
        (r#"-sc '{"method": "ngram", "num_speculative_tokens": 3}'"#, "speculative-method"),
        (r#"--speculative-config.method suffix"#, "speculative-method"),
        (r#"-sc '{"method": "mtp", "enable_adaptive_verification": true}'"#, "adaptive-verification"),
        (r#"--kv-transfer-config.kv_connector MoRIIOConnector --kv-transfer-config.kv_role kv_both"#, "pd-connector"),
    ] {
        let report = report(&format!("vllm serve m --enable-return-routed-experts {flags}"), 31);
        assert_eq!((report.level, rules(&report)), (Level::Cannot, vec![rule]), "{flags}");
    }
    assert_eq!(
        rules(&report("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m --enable-return-routed-experts", 33)),
        ["model-runner"]
    );
    assert_eq!(
        rules(&report("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m --enable-return-routed-experts", 25)),
        ["model-runner"]
    );
    assert_eq!(
        report("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m --enable-return-routed-experts", 31).level,
        Level::Works
    );
    let ngram = r#"vllm serve m --enable-return-routed-experts -sc '{"method": "ngram"}'"#;
    assert_eq!(report(ngram, 32).level, Level::Works);
    let both =
        report("vllm serve m --enable-return-routed-experts -pp 2 --aux-output-config '{\"max_bytes\": 1}' -dcp 2", 31);
    assert_eq!(rules(&both), ["pipeline-parallelism", "context-parallelism"]);
    let object = r#"vllm serve m --aux-output-config '{"enable_return_routed_experts": true}'"#;
    assert_eq!(report(object, 31).level, Level::Works);
}

#[test]
fn commands_are_found_in_what_they_are_wrapped_in() {
    for command in [
        "docker run --gpus all -e VLLM_USE_V2_MODEL_RUNNER=0 vllm/vllm-openai:v0.31.0 --model m --enable-return-routed-experts",
        "python -m vllm.entrypoints.openai.api_server --model m --enable-return-routed-experts",
        "/opt/venv/bin/vllm serve --enable-return-routed-experts m",
    ] {
        let configuration = Configuration::from_arguments([command]).unwrap();
        assert_eq!((configuration.engine(), configuration.model()), (Engine::Vllm, Some("m")), "{command}");
    }
    let words = ["vllm", "serve", "m", "--kv-transfer-config", r#"{"kv_connector": "NixlConnector"}"#];
    let report = examine(&Configuration::from_arguments(words).unwrap(), &Question::default());
    assert_eq!((report.version, report.version_told), (Version::new(0, 33, 0), false));
    assert_eq!(rules(&report), ["flag", "nixl"]);
}

#[test]
fn the_role_comes_from_the_connector_or_is_held_against_it() {
    let command = NIXL.replace("kv_both", "kv_consumer");
    let configuration = Configuration::from_arguments([command]).unwrap();
    assert_eq!(examine(&configuration, &Question::default()).role, Role::Decode);
    let asked = Question { role: Some(Role::Prefill), plugin: true, ..Question::default() };
    assert_eq!(rules(&examine(&configuration, &asked)), ["role"]);
}

#[test]
fn files_say_the_same_as_flags_and_the_command_line_goes_first() {
    let yaml = "model: m\nenable-return-routed-experts: true\npipeline_parallel_size: 2\nno-enable-prefix-caching: true\n\
                kv-transfer-config:\n  kv_connector: NixlConnector\n  kv_role: kv_both\n";
    let file = Configuration::from_file(Engine::Vllm, yaml).unwrap();
    let question = Question { version: Some(Version::new(0, 31, 0)), ..Question::default() };
    assert_eq!(rules(&examine(&file, &question)), ["pipeline-parallelism", "prefix-caching", "nixl"]);
    let json = r#"{"model": "m", "enable_return_routed_experts": true, "kv_transfer_config": "{\"kv_connector\": \"NixlConnector\"}"}"#;
    assert_eq!(rules(&examine(&Configuration::from_file(Engine::Vllm, json).unwrap(), &question)), ["nixl"]);

    let line = Configuration::from_arguments(["vllm serve --config f.yaml -pp 1 --enable-prefix-caching"]).unwrap();
    assert_eq!(line.config_file(), Some("f.yaml"));
    assert_eq!(rules(&examine(&line.or_from(file), &question)), ["nixl"]);
}

#[test]
fn a_running_server_is_read_as_far_as_it_says_something() {
    let info = serde_json::json!({
        "vllm_config": {
            "aux_output_config": {"enable_return_routed_experts": true},
            "parallel_config": {"pipeline_parallel_size": 1, "decode_context_parallel_size": 1},
            "cache_config": {"enable_prefix_caching": true},
            "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
            "speculative_config": null,
            "model_config": {"runner_type": "generate"},
        },
        "vllm_env": {"VLLM_USE_V2_MODEL_RUNNER": true, "GATESCOPE_COLLECTOR": null},
    });
    let question = Question { version: Some(Version::new(0, 31, 0)), ..Question::default() };
    let configuration = Configuration::from_server(Engine::Vllm, Some("m"), Some(&info)).unwrap();
    assert_eq!(rules(&examine(&configuration, &question)), ["nixl"]);

    let silent = Configuration::from_server(Engine::Vllm, Some("m"), None).unwrap();
    let report = examine(&silent, &question);
    assert_eq!(report.level, Level::Works);
    assert!(report.not_checked[0].contains("does not give out its configuration"));

    let arguments = serde_json::json!({"enable_return_routed_experts": false, "disaggregation_mode": "null"});
    let sglang = Configuration::from_server(Engine::Sglang, None, Some(&arguments)).unwrap();
    assert_eq!(rules(&examine(&sglang, &Question::default())), ["sglang-flag"]);
}

#[test]
fn sglang_has_its_own_flag() {
    let report = |command: &str, patch| {
        let question = Question { version: Some(Version::new(0, 5, patch)), ..Question::default() };
        examine(&Configuration::from_arguments([command]).unwrap(), &question)
    };
    let on = "python -m sglang.launch_server --model-path m --enable-return-routed-experts --tp 4";
    assert_eq!(report(on, 23).level, Level::Works);
    assert_eq!(rules(&report(on, 6)), ["sglang-too-old"]);
    assert_eq!(rules(&report("sglang serve --model-path m", 23)), ["sglang-flag"]);
    assert_eq!(rules(&report(&format!("{on} --disaggregation-mode decode"), 23)), ["sglang-disaggregated"]);
}

#[test]
fn bad_input_is_an_error_with_its_place() {
    let error = |command: &str| Configuration::from_arguments([command]).unwrap_err();
    assert_eq!(error("vllm serve 'm"), ConfigurationError::Quote('\''));
    assert_eq!(error("python train.py"), ConfigurationError::NoEngine("python train.py".to_owned()));
    assert_eq!(error(""), ConfigurationError::NoEngine(String::new()));
    for bad in ["--kv-transfer-config '{\"a\"'", "--kv-transfer-config nixl", "-sc '[1]'", "--kv-transfer-config"] {
        assert!(matches!(error(&format!("vllm serve m {bad}")), ConfigurationError::Json { .. }), "{bad}");
    }
    assert!(matches!(error("vllm serve m -pp two"), ConfigurationError::Value { .. }));
    assert!(matches!(error("vllm serve m -pp -1"), ConfigurationError::Value { .. }));
    for bad in ["- a\n- b", "a: [", "\u{0}", "a: 1\n\ta: 2"] {
        assert!(matches!(Configuration::from_file(Engine::Vllm, bad), Err(ConfigurationError::File(_))), "{bad:?}");
    }
}

#[test]
fn versions_beyond_what_is_known_say_so() {
    for minor in [8, 34, 99] {
        let report = report("vllm serve m --enable-return-routed-experts", minor);
        assert!(
            report.not_checked.iter().any(|what| what.contains("rules are known from 0.11.0 to 0.33.0")),
            "{minor}"
        );
    }
    assert!(!report("vllm serve m", 33).not_checked.iter().any(|what| what.contains("rules are known")));
}

#[test]
fn the_report_reads_as_a_page_and_as_json() {
    let report = report(NIXL, 31);
    let text = report.to_string();
    assert!(
        text.starts_with("vLLM 0.31.0, colocated: works with the plugin\n\nnixl: KV connector NixlConnector\n"),
        "{text}"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        (&json["version"], &json["level"], &json["findings"][0]["known"]),
        (&"0.31.0".into(), &"plugin".into(), &"ran".into())
    );
}
