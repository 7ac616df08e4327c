#![allow(clippy::unwrap_used)]
use prost_types::Timestamp;
use selvage_api::selvage::identity::{Grant, ListUsersResponse, User};

use super::*;

fn users() -> DynamicMessage {
    let grant = |role: &str, organisation: &str| Grant {
        role: role.into(),
        organisation: organisation.into(),
    };
    let user = |username: &str, grants| User {
        username: username.into(),
        grants,
        created_at: Some(Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        source: "password".into(),
        ..User::default()
    };
    let mut second = user("bob-the-operator", vec![grant("operator", "tmus"), grant("viewer", "")]);
    second.disabled = true;
    let list = ListUsersResponse { users: vec![user("ada", vec![grant("admin", "")]), second] };
    dynamic("selvage.identity.ListUsersResponse", &list).unwrap()
}

fn printed(format: Format, colour: bool, print: impl Fn(&mut Printer<'_>)) -> String {
    let mut out = Vec::new();
    print(&mut Printer::new(&mut out, format, colour));
    String::from_utf8(out).unwrap()
}

#[test]
fn a_list_is_a_table_of_what_it_holds() {
    assert_eq!(
        printed(Format::Table, false, |p| p.message(&users()).unwrap()),
        "\
USERNAME          GRANTS                DISABLED  SOURCE
ada               admin                 false     password
bob-the-operator  operator:tmus,viewer  true      password
"
    );
}

#[test]
fn wide_shows_the_rest() {
    assert_eq!(
        printed(Format::Wide, false, |p| p.message(&users()).unwrap()),
        "\
USERNAME          GRANTS                DISABLED  SOURCE    CREATED-AT            PASSWORD-CHANGED-AT
ada               admin                 false     password  2023-11-14T22:13:20Z  -
bob-the-operator  operator:tmus,viewer  true      password  2023-11-14T22:13:20Z  -
"
    );
}

#[test]
fn json_is_one_line_with_the_names_of_the_contract() {
    assert_eq!(
        printed(Format::Json, false, |p| p.message(&users()).unwrap()),
        concat!(
            r#"{"users":[{"username":"ada","grants":[{"role":"admin"}],"#,
            r#""created_at":"2023-11-14T22:13:20Z","source":"password"},"#,
            r#"{"username":"bob-the-operator","grants":[{"role":"operator","organisation":"tmus"},"#,
            r#"{"role":"viewer"}],"disabled":true,"created_at":"2023-11-14T22:13:20Z","#,
            r#""source":"password"}]}"#,
            "\n"
        )
    );
}

#[test]
fn yaml_is_one_document_a_message() {
    let grant = Grant { role: "viewer".into(), organisation: String::new() };
    let grant = dynamic("selvage.identity.Grant", &grant).unwrap();
    assert_eq!(
        printed(Format::Yaml, false, |p| {
            p.message(&grant).unwrap();
            p.message(&grant).unwrap();
        }),
        "role: viewer\n---\nrole: viewer\n"
    );
    assert_eq!(
        printed(Format::Yaml, false, |p| p.message(&users()).unwrap()),
        "\
users:
- username: ada
  grants:
  - role: admin
  created_at: \"2023-11-14T22:13:20Z\"
  source: password
- username: bob-the-operator
  grants:
  - role: operator
    organisation: tmus
  - role: viewer
  disabled: true
  created_at: \"2023-11-14T22:13:20Z\"
  source: password
"
    );
}

#[test]
fn a_single_message_is_its_fields() {
    let user = User { username: "ada".into(), ..User::default() };
    let user = dynamic("selvage.identity.User", &user).unwrap();
    assert_eq!(
        printed(Format::Table, false, |p| p.message(&user).unwrap()),
        "\
username             ada
grants               -
disabled             false
created_at           -
password_changed_at  -
source               -
"
    );
}

#[test]
fn a_list_among_other_fields_comes_after_them() {
    let part = |name: &str| selvage_api::selvage::system::Part {
        name: name.into(),
        state: "serving".into(),
        ..Default::default()
    };
    let status = selvage_api::selvage::system::GetStatusResponse {
        version: "1.2.3".into(),
        store: "embedded".into(),
        parts: vec![part("auth"), part("dme")],
        ..Default::default()
    };
    let status = dynamic("selvage.system.GetStatusResponse", &status).unwrap();
    assert_eq!(
        printed(Format::Table, false, |p| p.message(&status).unwrap()),
        "\
version         1.2.3
commit          -
store           embedded
store_revision  0
uptime_seconds  0
insecure        false
store_failure   -

NAME  STATE    ADDRESS
auth  serving  -
dme   serving  -
"
    );
}

#[test]
fn rows_that_come_later_line_up_with_the_first() {
    let row = |name: &str| {
        let part = selvage_api::selvage::system::Part {
            name: name.into(),
            state: "serving".into(),
            ..Default::default()
        };
        dynamic("selvage.system.Part", &part).unwrap()
    };
    assert_eq!(
        printed(Format::Table, false, |p| {
            p.row(&row("dashboard")).unwrap();
            p.flush().unwrap();
            p.row(&row("dme")).unwrap();
            p.flush().unwrap();
        }),
        "NAME       STATE    ADDRESS\ndashboard  serving  -\ndme        serving  -\n"
    );
}

#[test]
fn nested_keys_become_columns() {
    let app = selvage_api::pool().get_message_by_name("edgeproto.App").unwrap();
    let columns = columns::of(&app, false);
    assert_eq!(columns[0].path[0], "key");
    assert!(columns.len() <= 8 && columns::of(&app, true).len() > columns.len());
}

fn instances() -> Vec<DynamicMessage> {
    use selvage_api::edgeproto::*;
    let instance = |app: &str, cloudlet: &str, runtime_info: AppInstRuntime| AppInst {
        key: Some(AppInstKey {
            app_key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: "AcmeAppCo".into() }),
                name: app.into(),
                version: "1.0".into(),
            }),
            cluster_inst_key: Some(ClusterInstKey {
                cluster_key: Some(ClusterKey { name: format!("autocluster{app}") }),
                cloudlet_key: Some(CloudletKey {
                    operator_key: Some(OperatorKey { name: "tmus".into() }),
                    name: cloudlet.into(),
                }),
                developer: "AcmeAppCo".into(),
            }),
        }),
        state: TrackedState::Ready.into(),
        uri: format!("autocluster{app}.{cloudlet}.tmus.selvage.internal"),
        runtime_info: Some(runtime_info),
        ..AppInst::default()
    };
    let runs = AppInstRuntime { addresses: vec!["10.101.1.1:80".into()], ..Default::default() };
    let sick = AppInstRuntime {
        addresses: vec!["10.101.1.2:8080".into()],
        unhealthy: "the application ended with exit code 137".into(),
        restarts: 12,
        ..Default::default()
    };
    let all = [instance("hello", "site-1", runs), instance("recognition", "site-2", sick)];
    all.iter().map(|one| dynamic("edgeproto.AppInst", one).unwrap()).collect()
}

/// Table of instances on a terminal of that width, and what stderr says.
fn narrow(columns: usize) -> (String, String) {
    let (mut out, mut err, mut told) = (Vec::new(), Vec::new(), false);
    for _ in 0..2 {
        out.clear();
        let notice = Notice { err: &mut err, told: &mut told };
        let printer = Printer::new(&mut out, Format::Table, false);
        let mut printer = printer.columns(Some(columns)).notice(Some(notice));
        instances().iter().for_each(|one| printer.row(one).unwrap());
        printer.flush().unwrap();
    }
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

const HINT: &str = "some columns do not fit: -o wide or -o yaml shows all\n";

#[test]
fn instances_on_80_columns_have_state_health_and_address() {
    let (out, err) = narrow(80);
    assert_eq!(
        out,
        "\
APP          CLOUDLET  STATE  HEALTH                   RESTARTS  ADDRESS
hello        site-1    READY  healthy                  0         10.101.1.1:80
recognition  site-2    READY  unhealthy: the applica…  12        10.101.1.2:8080
"
    );
    assert_eq!(err, HINT, "once");
}

#[test]
fn instances_on_100_columns_lose_what_tells_least() {
    let (out, err) = narrow(100);
    assert_eq!(
        out,
        "\
APP          CLOUDLET  CLUSTER               STATE  HEALTH                RESTARTS  ADDRESS
hello        site-1    autoclusterhello      READY  healthy               0         10.101.1.1:80
recognition  site-2    autoclusterrecognit…  READY  unhealthy: the appl…  12        10.101.1.2:8080
"
    );
    assert_eq!(err, HINT, "once");
}

#[test]
fn no_instance_table_is_wider_than_its_terminal_or_without_state_and_health() {
    for columns in 30..=300 {
        let (out, err) = narrow(columns);
        let widest = out.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(columns), "{columns}:\n{out}");
        let header = out.lines().next().unwrap_or_default();
        assert!(["APP", "STATE", "HEALTH"].iter().all(|it| header.contains(it)), "{header}");
        assert_eq!(err == HINT, !header.contains("URI"), "{columns}:\n{out}");
    }
}

#[test]
fn colour_is_bold_headers_and_only_when_asked_for() {
    let bold = printed(Format::Table, true, |p| p.message(&users()).unwrap());
    assert!(bold.contains("\x1b[1m"), "{bold:?}");
    assert!(!printed(Format::Table, false, |p| p.message(&users()).unwrap()).contains('\x1b'));
}

#[test]
fn what_the_server_says_cannot_steer_the_terminal() {
    let user = User { username: "a\x1b[2J\n\u{9b}2Jb".into(), ..User::default() };
    let list = ListUsersResponse { users: vec![user] };
    let list = dynamic("selvage.identity.ListUsersResponse", &list).unwrap();
    let json = printed(Format::Json, false, |p| p.message(&list).unwrap());
    let read: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(read["users"][0]["username"], "a\x1b[2J\n\u{9b}2Jb", "and yet is kept");
    for format in [Format::Table, Format::Wide, Format::Json, Format::Yaml] {
        let text = printed(format, false, |p| p.message(&list).unwrap());
        assert!(!text.contains(['\x1b', '\u{9b}']), "{format:?}: {text:?}");
    }
}
