//! Configuration as an operator meets it: layers, exact errors, dumps.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::PathBuf};

use selvage_api::Code;
use selvage_kit::config::{ByteSize, Duration, Error, Loader, Redacted, SecretFile, dump};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Listen {
    host: String,
    port: u16,
    idle_timeout: Duration,
    max_message: ByteSize,
    certificate: Option<PathBuf>,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8443,
            idle_timeout: Duration::from_secs(90),
            max_message: ByteSize::mib(4),
            certificate: None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    url: String,
    #[serde(default)]
    weight: i32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    name: String,
    insecure: bool,
    ratio: f64,
    format: Format,
    tags: Vec<String>,
    ports: Vec<u16>,
    password: Redacted,
    key: Option<SecretFile>,
    listen: Listen,
    endpoints: Vec<Endpoint>,
    labels: BTreeMap<String, u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "edge".into(),
            insecure: false,
            ratio: 0.5,
            format: Format::Text,
            tags: vec!["a".into()],
            ports: Vec::new(),
            password: Redacted::default(),
            key: None,
            // Not what `Listen::default` says: the outer default must win.
            listen: Listen { port: 9000, ..Listen::default() },
            endpoints: Vec::new(),
            labels: BTreeMap::new(),
        }
    }
}

struct File {
    _dir: TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("selvage.toml");
        fs::write(&path, text).unwrap();
        Self { _dir: dir, path }
    }

    fn loader(&self) -> Loader {
        Loader::new().file(&self.path)
    }

    fn error(&self) -> String {
        self.short(self.loader().load::<Config>().unwrap_err())
    }

    fn short(&self, error: Error) -> String {
        error.to_string().replace(&self.path.display().to_string(), "selvage.toml")
    }
}

fn variables(pairs: &[(&str, &str)]) -> Loader {
    Loader::new().variables(pairs.iter().copied())
}

fn variable_error(name: &str, value: &str) -> String {
    variables(&[(name, value)]).load::<Config>().unwrap_err().to_string()
}

#[test]
fn later_layers_win_key_by_key() {
    let file = File::new("name = 'file'\ntags = ['x', 'y']\n[listen]\nport = 1\nhost = 'file'\n");
    let config: Config = file
        .loader()
        .variables([("SELVAGE_LISTEN_HOST", "env"), ("SELVAGE_LISTEN_PORT", "2"), ("PATH", "/bin")])
        .flag("--port", "listen.port", "3")
        .load()
        .unwrap();
    assert_eq!(config.name, "file");
    assert_eq!(config.tags, ["x", "y"]);
    assert_eq!(config.listen, Listen { host: "env".into(), port: 3, ..Listen::default() });
}

#[test]
fn defaults_of_the_whole_hold_where_a_section_is_given_in_part() {
    let config: Config = File::new("[listen]\nhost = '::1'\n").loader().load().unwrap();
    assert_eq!(config.listen.port, 9000);
    assert_eq!(Loader::new().load::<Config>().unwrap(), Config::default());
}

#[test]
fn variables_are_read_as_what_the_key_takes() {
    let config: Config = variables(&[
        ("SELVAGE_NAME", "7"),
        ("SELVAGE_INSECURE", "true"),
        ("SELVAGE_RATIO", "0.25"),
        ("SELVAGE_FORMAT", "json"),
        ("SELVAGE_TAGS", "a, b"),
        ("SELVAGE_PORTS", "[1, 2]"),
        ("SELVAGE_PASSWORD", "hunter2"),
        ("SELVAGE_KEY", "/k"),
        ("SELVAGE_LISTEN_IDLE_TIMEOUT", "1h30m"),
        ("SELVAGE_LISTEN_MAX_MESSAGE", "65536"),
        ("SELVAGE_LISTEN_CERTIFICATE", "/c.pem"),
        ("SELVAGE_ENDPOINTS", r#"[{ url = "http://a", weight = 3 }]"#),
        ("SELVAGE_LABELS", "{ a = 1 }"),
    ])
    .load()
    .unwrap();
    let expected = Config {
        name: "7".into(),
        insecure: true,
        ratio: 0.25,
        format: Format::Json,
        tags: vec!["a".into(), "b".into()],
        ports: vec![1, 2],
        password: Redacted::new("hunter2"),
        key: Some(SecretFile("/k".into())),
        listen: Listen {
            port: 9000,
            idle_timeout: Duration::from_secs(5400),
            max_message: ByteSize::kib(64),
            certificate: Some("/c.pem".into()),
            ..Listen::default()
        },
        endpoints: vec![Endpoint { url: "http://a".into(), weight: 3 }],
        labels: BTreeMap::from([("a".into(), 1)]),
    };
    assert_eq!(config, expected);
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_nearest_known_one() {
    for (text, expected) in [
        (
            "\n[listen]\nprot = 1\n",
            r#"selvage.toml:3:1: unknown key "listen.prot", did you mean "listen.port"?"#,
        ),
        (
            "listen.prot = 1\n",
            r#"selvage.toml:1:8: unknown key "listen.prot", did you mean "listen.port"?"#,
        ),
        (
            "  [lisetn]\nport = 1\n",
            r#"selvage.toml:1:4: unknown key "lisetn", did you mean "listen"?"#,
        ),
        ("host = 'x'\n", r#"selvage.toml:1:1: unknown key "host", did you mean "listen.host"?"#),
        (
            "[listen]\ncertificat = 'x'\n",
            r#"selvage.toml:2:1: unknown key "listen.certificat", did you mean "listen.certificate"?"#,
        ),
        ("zebra = 1\n", r#"selvage.toml:1:1: unknown key "zebra""#),
        ("listen.xy = 1\n", r#"selvage.toml:1:8: unknown key "listen.xy""#),
        (
            "[[endpoints]]\nurl = 'a'\n[[endpoints]]\nrul = 'b'\n",
            r#"selvage.toml:4:1: unknown key "endpoints[1].rul", did you mean "endpoints[1].url"?"#,
        ),
    ] {
        assert_eq!(File::new(text).error(), expected, "{text}");
    }
}

#[test]
fn an_unfit_value_is_shown_with_its_place_and_what_was_expected() {
    for (text, expected) in [
        (
            "[listen]\nport = 'abc'\n",
            r#"selvage.toml:2:8: invalid value "abc" for listen.port: expected an integer"#,
        ),
        (
            "[listen]\nport = 70000\n",
            "selvage.toml:2:8: invalid value 70000 for listen.port: expected an integer from 0 to 65535",
        ),
        ("name = 1\n", "selvage.toml:1:8: invalid value 1 for name: expected text in quotes"),
        (
            "insecure = 'yes'\n",
            r#"selvage.toml:1:12: invalid value "yes" for insecure: expected true or false"#,
        ),
        (
            "format = 'xml'\n",
            r#"selvage.toml:1:10: invalid value "xml" for format: expected one of "text", "json""#,
        ),
        ("listen = 5\n", "selvage.toml:1:10: invalid value 5 for listen: expected a table"),
        ("tags = 5\n", "selvage.toml:1:8: invalid value 5 for tags: expected a list"),
        (
            "ports = [1, 'x']\n",
            r#"selvage.toml:1:13: invalid value "x" for ports[1]: expected an integer"#,
        ),
        (
            "[listen]\nidle_timeout = '5 parsecs'\n",
            r#"selvage.toml:2:16: invalid value "5 parsecs" for listen.idle_timeout: expected a duration such as "500ms", "30s", "5m" or "12h""#,
        ),
        (
            "[listen]\nidle_timeout = 30\n",
            r#"selvage.toml:2:16: invalid value 30 for listen.idle_timeout: expected a duration such as "500ms", "30s", "5m" or "12h""#,
        ),
        (
            "[listen]\nmax_message = -1\n",
            r#"selvage.toml:2:15: invalid value -1 for listen.max_message: expected a size such as 4096, "512KiB", "4MiB" or "1GB""#,
        ),
        ("[[endpoints]]\nweight = 1\n", r#"selvage.toml:1:1: key "endpoints[0].url" is missing"#),
        (
            "[labels]\na = 'b'\n",
            r#"selvage.toml:2:5: invalid value "b" for labels.a: expected an integer"#,
        ),
    ] {
        assert_eq!(File::new(text).error(), expected, "{text}");
    }
}

#[test]
fn a_file_that_is_no_toml_is_refused_at_the_spot() {
    let error = File::new("name = 'a'\nlisten = [\n").error();
    assert!(
        error.starts_with("selvage.toml:2:") || error.starts_with("selvage.toml:3:"),
        "{error}"
    );
    let error = File::new("name = 'a'\nname = 'b'\n").error();
    assert!(error.starts_with("selvage.toml:2:1: duplicate key"), "{error}");
}

#[test]
fn wrong_variables_are_named() {
    assert_eq!(
        variable_error("SELVAGE_LISTEN_PORT", "abc"),
        r#"SELVAGE_LISTEN_PORT: invalid value "abc" for listen.port: expected an integer"#
    );
    assert_eq!(
        variable_error("SELVAGE_LISTEN_PROT", "1"),
        r#"SELVAGE_LISTEN_PROT: no configuration key has this name, did you mean "SELVAGE_LISTEN_PORT"?"#
    );
    assert_eq!(
        variable_error("SELVAGE_ZEBRA", "1"),
        "SELVAGE_ZEBRA: no configuration key has this name"
    );
    assert_eq!(
        variable_error("SELVAGE_PORTS", "1,x"),
        r#"SELVAGE_PORTS: invalid value "x" for ports[1]: expected an integer"#
    );
    let allowed = variables(&[("SELVAGE_ZEBRA", "1")]).allow_variables(["SELVAGE_ZEBRA"]);
    assert_eq!(allowed.load::<Config>().unwrap(), Config::default());
}

#[test]
fn a_variable_that_is_no_text_is_refused_by_name() {
    use std::os::unix::ffi::OsStrExt;
    let value = std::ffi::OsStr::from_bytes(b"\xff");
    let error = Loader::new().variables([("SELVAGE_NAME", value)]).load::<Config>().unwrap_err();
    assert_eq!(error.to_string(), "SELVAGE_NAME: the value is not valid UTF-8");
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[test]
fn flags_reach_every_key_and_are_named_in_errors() {
    let load = |text: &str| Loader::new().set(text).and_then(|loader| loader.load::<Config>());
    assert_eq!(load("listen.port = 5").unwrap().listen.port, 5);
    assert_eq!(load("labels.x=7").unwrap().labels["x"], 7);
    assert_eq!(
        load("listen.prot=5").unwrap_err().to_string(),
        r#"--set: unknown key "listen.prot", did you mean "listen.port"?"#
    );
    assert_eq!(
        load("listen.port").unwrap_err().to_string(),
        r#"override "listen.port" is not of the form key.path=value"#
    );
    let error = Loader::new().set("=canary").unwrap_err().to_string();
    assert!(!error.contains("canary"), "{error}");
    let error = Loader::new().flag("--port", "listen.port", "x").load::<Config>().unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"--port: invalid value "x" for listen.port: expected an integer"#
    );
}

/// Whoever drops the flag should not be the first to hear of it.
#[test]
fn what_is_overridden_must_be_right_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.toml");
    fs::write(&path, "[listen]\nport = 70000\n").unwrap();
    let loader = || Loader::new().file(&path).flag("--port", "listen.port", "5");
    let error = loader().load::<Config>().unwrap_err().to_string();
    assert!(error.contains("edge.toml:2:8: invalid value 70000 for listen.port"), "{error}");
    fs::write(&path, "[listen]\nport = 7000\n").unwrap();
    assert_eq!(loader().load::<Config>().unwrap().listen.port, 5);
    let error = loader().variables([("SELVAGE_LISTEN_PORT", "x")]).load::<Config>().unwrap_err();
    assert!(error.to_string().starts_with("SELVAGE_LISTEN_PORT: invalid value"), "{error}");

    // What is missing in one may be given by the next.
    fs::write(&path, "[[endpoints]]\nweight = 1\n").unwrap();
    let given = Loader::new().file(&path).flag("--set", "endpoints", "[]");
    assert_eq!(given.load::<Config>().unwrap().endpoints, []);
}

#[test]
fn a_missing_file_is_an_error_unless_it_may_be_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.toml");
    let error = Loader::new().file(&path).load::<Config>().unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.to_string().ends_with("none.toml: cannot be read"), "{error}");
    assert_eq!(Loader::new().file_if_present(&path).load::<Config>().unwrap(), Config::default());
}

#[test]
fn a_dump_loads_again_and_holds_no_secret() {
    let config = Config {
        labels: BTreeMap::from([("a".into(), 1)]),
        endpoints: vec![Endpoint { url: "http://a".into(), weight: -1 }],
        listen: Listen { idle_timeout: Duration::from_millis(90_500), ..Listen::default() },
        ..Config::default()
    };
    let text = dump(&config).unwrap();
    assert!(text.contains(r#"idle_timeout = "1m30s500ms""#), "{text}");
    assert!(text.contains(r#"max_message = "4MiB""#), "{text}");
    assert_eq!(File::new(&text).loader().load::<Config>().unwrap(), config);

    let secret = Config { password: Redacted::new("canary"), ..config };
    let text = dump(&secret).unwrap();
    assert!(text.contains("password = \"…\"") && !text.contains("canary"), "{text}");
    assert!(!format!("{secret:?}").contains("canary"));
    let error = File::new(&text).error();
    assert!(error.contains("for password: this is the mark of a dump"), "{error}");
}

#[test]
fn a_secret_of_the_wrong_type_is_not_quoted() {
    let error = File::new("password = 4711\n").error();
    assert_eq!(error, "selvage.toml:1:12: invalid value for password: expected text in quotes");
}

#[test]
fn durations_and_sizes_read_back_as_written() {
    for text in ["0s", "1ns", "500ms", "30s", "1m30s", "12h", "7d", "1d1h1m1s1ms1us1ns"] {
        assert_eq!(text.parse::<Duration>().unwrap().to_string(), text);
    }
    for text in ["", "5", "s", "-5s", "5x", "1.5h", "99999999999999999999d", "5s5"] {
        assert!(text.parse::<Duration>().is_err(), "{text}");
    }
    for text in ["0B", "1B", "1023B", "1KiB", "4MiB", "3GiB", "1TiB"] {
        assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
    }
    assert_eq!("1 GB".parse::<ByteSize>().unwrap(), ByteSize(1_000_000_000));
    assert_eq!("7".parse::<ByteSize>().unwrap(), ByteSize(7));
    for text in ["", "MiB", "-1", "4MiB4", "4 mib", "99999999999TiB"] {
        assert!(text.parse::<ByteSize>().is_err(), "{text}");
    }
}

#[test]
fn a_secret_file_gives_its_secret_only_when_others_cannot_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    let secret = SecretFile(path.clone());
    assert_eq!(secret.read().unwrap_err().code(), Code::NotFound);

    fs::write(&path, "hunter2\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let error = secret.read().unwrap_err().to_string();
    assert!(error.contains("open to everybody (mode 0644)"), "{error}");

    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(secret.read().unwrap().expose(), "hunter2");
    fs::write(&path, "\n").unwrap();
    assert!(secret.read().unwrap_err().to_string().ends_with(": empty"));
    fs::write(&path, [0xff]).unwrap();
    assert!(secret.read().unwrap_err().to_string().ends_with(": not valid UTF-8"));
    fs::write(&path, vec![b'x'; 65 * 1024]).unwrap();
    assert!(secret.read().unwrap_err().to_string().ends_with(": longer than 64 KiB"));
}

#[test]
fn two_keys_with_one_variable_are_a_named_defect() {
    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Inner {
        c: u8,
        b_c: u8,
    }
    #[derive(Debug, Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Outer {
        a: Inner,
        a_b: Inner,
    }
    let error = Loader::new().load::<Outer>().unwrap_err();
    assert_eq!(error.to_string(), r#"keys "a.b_c" and "a_b.c" are both set by SELVAGE_A_B_C"#);
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_loader_panic(text in "[a-z\\[\\]{}=.,'\"\n 0-9é-]{0,60}", raw in "\\PC{0,30}") {
        let file = File::new(&text);
        let _ = file.loader().load::<Config>();
        for variable in ["PORTS", "LABELS", "ENDPOINTS", "LISTEN_IDLE_TIMEOUT", "LISTEN_MAX_MESSAGE"] {
            let _ = variables(&[(&format!("SELVAGE_{variable}"), &raw)]).load::<Config>();
        }
        let _ = Loader::new().set(&raw).and_then(|loader| loader.load::<Config>());
    }
}

#[test]
fn a_key_by_its_old_name_is_taken_for_the_new_one_with_a_warning() {
    let renamed = |loader: Loader| {
        let loader = loader.renamed("server.address", "listen.host");
        loader.renamed("tag", "name").renamed("marks", "labels")
    };
    let file = File::new("[server]\naddress = 'file'\n");
    assert_eq!(renamed(file.loader()).load::<Config>().unwrap().listen.host, "file");
    // What else stands in a section that is no more is refused as ever.
    let file = File::new("[server]\naddress = 'file'\nport = 1\n");
    let left = file.short(renamed(file.loader()).load::<Config>().unwrap_err());
    assert!(left.contains("unknown key \"server\""), "{left}");

    let file = File::new("tag = 'old'\nmarks = { a = 1 }\n");
    let loader = renamed(file.loader())
        .variables([("SELVAGE_SERVER_ADDRESS", "env")])
        .flag("--set", "marks.b", "2");
    let (config, warnings): (Config, _) = loader.load_with_warnings().unwrap();
    assert_eq!((config.name.as_str(), config.listen.host.as_str()), ("old", "env"));
    assert_eq!(config.labels, BTreeMap::from([("a".into(), 1), ("b".into(), 2)]));
    let path = file.path.display().to_string();
    let warnings: Vec<_> = warnings.iter().map(|text| text.replace(&path, "F")).collect();
    assert_eq!(
        warnings,
        [
            "F:1:1: tag is now called name",
            "F:2:1: marks is now called labels",
            "SELVAGE_SERVER_ADDRESS: server.address is now called listen.host",
            "--set: marks is now called labels",
        ]
    );

    let file = File::new("tag = 'old'\nname = 'new'\n");
    assert_eq!(renamed(file.loader()).load::<Config>().unwrap().name, "new");
}
