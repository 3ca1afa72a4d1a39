//! Flags go before the environment, that before the file, that before defaults; what nobody knows is an error.

use std::io;

use crate::gatescope::{Gatescope, fixture_path, run};

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    // given
    let gatescope = Gatescope::new();
    gatescope.write("gatescope.toml", "data = \"from-file\"\nrun = \"from-file\"\n");
    let import = |arguments: &[&str], variable: Option<&str>| {
        let mut command = gatescope.command(&["import", "--quiet", &fixture_path("pair.pd.jsonl")]);
        command.args(arguments);
        if let Some(value) = variable {
            command.env("GATESCOPE_DATA", value);
        }
        let ran = run(&mut command, io::empty());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    };
    let exists = |name: &str| gatescope.folder().join(name).exists();

    // when, then
    import(&[], None);
    assert!(exists("from-file") && !exists("from-variable"));
    import(&[], Some("from-variable"));
    assert!(exists("from-variable") && !exists("from-flag"));
    import(&["--data", "from-flag"], Some("from-variable"));
    assert!(exists("from-flag") && !exists("gatescope-data"));
}

#[test]
fn an_unknown_key_or_variable_is_an_error_that_names_it() {
    // given
    let gatescope = Gatescope::new();
    let file = fixture_path("pair.pd.jsonl");

    // when
    let variable = run(gatescope.command(&["import", &file]).env("GATESCOPE_DTA", "x"), io::empty());
    gatescope.write("gatescope.toml", "dta = \"x\"\n");
    let key = gatescope.run(&["import", &file], io::empty());

    // then
    assert_eq!((variable.code, key.code), (2, 2));
    assert!(variable.stderr.contains("GATESCOPE_DTA: unknown; expected one of GATESCOPE_AT, "), "{}", variable.stderr);
    assert!(key.stderr.contains("gatescope.toml:1: unknown field `dta`"), "{}", key.stderr);
}

#[test]
fn help_shows_the_commands_and_an_example_of_each() {
    let gatescope = Gatescope::new();
    let help = gatescope.run(&["--help"], io::empty());
    assert_eq!(help.code, 0);
    assert!(help.stdout.contains("import"));
    let import = gatescope.run(&["import", "--help"], io::empty());
    assert!(import.stdout.contains("gatescope import responses.jsonl"), "{}", import.stdout);
    let version = gatescope.run(&["--version"], io::empty());
    assert_eq!(version.stdout.trim(), concat!("gatescope ", env!("CARGO_PKG_VERSION")));
    assert_eq!(gatescope.run(&["import"], io::empty()).code, 2);
}
