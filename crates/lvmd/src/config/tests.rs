#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

fn class(name: &str, group: &str) -> DeviceClass {
    DeviceClass { name: name.into(), volume_group: group.into(), ..DeviceClass::default() }
}

fn thin(name: &str, group: &str, pool: &str, ratio: f64) -> DeviceClass {
    DeviceClass {
        r#type: "thin".into(),
        thin_pool: Some(ThinPool { name: pool.into(), overprovision_ratio: ratio }),
        ..class(name, group)
    }
}

fn said(classes: &[DeviceClass]) -> String {
    validate::device_classes(classes).unwrap_err()
}

#[test]
fn a_file_of_the_original_is_read() {
    let text = "
socket-name: /run/topolvm/lvmd.sock
Device-Classes:
  - name: ssd
    Volume-Group: myvg1
    default: true
    spare-gb: 10
    something-new: [1, 2]
  - name: raid
    volume-group: myvg2
    spare-gb: null
    stripe: 2
    stripe-size: 64K
    lvcreate-options: ['--type', raid1]
  - name: thin
    volume-group: myvg1
    type: thin
    thin-pool: {name: pool0, overprovision-ratio: 5}
lvcreate-option-classes:
  - name: fast
    options: [--alloc, contiguous]
backup:
  script-path: /usr/local/bin/backup.sh
  workdir: /var/topolvm
";
    let config = Config::parse(text).unwrap();
    assert_eq!(config.socket_name, Path::new("/run/topolvm/lvmd.sock"));
    assert_eq!(config.mode(), Ok(0o600));
    let spare: Vec<u64> = config.device_classes.iter().map(|class| class.spare() >> 30).collect();
    assert_eq!(spare, [10, 10, 10]);
    let classes = Classes::new(&config);
    let raid = classes.find("raid").unwrap();
    let options = classes.options(raid, "").unwrap();
    assert_eq!(options, ["-i", "2", "-I", "64K", "--type", "raid1"]);
    assert_eq!(classes.options(raid, "fast").unwrap(), ["--alloc", "contiguous"]);
    let unknown = classes.options(raid, "slow").unwrap_err();
    assert_eq!(unknown.to_string(), "unsupported lvcreate-option-class target: slow");
    assert_eq!(classes.find("").unwrap().name, "ssd");
    assert_eq!(classes.find("x").unwrap_err().to_string(), "device-class not found: x");
}

#[test]
fn the_first_failure_has_the_error_text_of_the_original() {
    assert_eq!(said(&[]), "should have at least one device-class");
    assert_eq!(said(&[class("", "")]), "device-class name should not be empty");
    let long = "x".repeat(64);
    assert_eq!(said(&[class(&long, "vg")]), format!("device-class name is too long: {long}"));
    for bad in ["-a", "a_", "a/b", ".", "é"] {
        let rule = "device-class name should consist of alphanumeric characters, '-', '_' or '.', and should start and end with an alphanumeric character";
        assert_eq!(said(&[class(bad, "vg")]), format!("{rule}: {bad}"));
    }
    assert_eq!(said(&[class("a", "")]), "volume group name should not be empty: a");
    let twice = [class("a", "v1"), class("a", "v2")];
    assert_eq!(said(&twice), "duplicate device-class name: a");
    let shared = [class("a", "v1"), class("b", "v1")];
    assert_eq!(said(&shared), "duplicate volumegroup/thinpool name: b, v1");
    let shared = [thin("a", "v1", "p", 1.0), thin("b", "v1", "p", 1.0)];
    assert_eq!(said(&shared), "duplicate volumegroup/thinpool name: b, v1/p");
    let mut both = [class("a", "v1"), class("b", "v2")];
    both.iter_mut().for_each(|class| class.default = true);
    assert_eq!(said(&both), "should not have multiple default device-class");
}

#[test]
fn thin_classes_and_stripes_have_rules_of_their_own() {
    let mut odd = class("a", "v");
    odd.r#type = "fat".into();
    assert_eq!(
        said(&[odd]),
        "target 'type' of device-class can be one of 'thick' or 'thin' or empty to default to 'thick'"
    );
    let mut without = thin("a", "v", "p", 2.0);
    without.thin_pool = None;
    let said_text = said(&[without]);
    assert_eq!(said_text, "device class type is thin but thinpool config is empty: a");
    assert_eq!(said(&[thin("a", "v", "", 2.0)]), "thinpool name should not be empty: a");
    for ratio in [0.5, 0.0, f64::NAN] {
        assert_eq!(
            said(&[thin("a", "v", "p", ratio)]),
            "overprovision ratio for thin pool p in device class a should be 1.0 or more"
        );
    }
    for (size, good) in [("4", true), ("4m", true), ("4G", true), ("", true), ("4gib", false)] {
        let mut striped = class("a", "v");
        striped.stripe_size = size.into();
        let checked = validate::device_classes(&[striped]);
        assert_eq!(checked.is_ok(), good, "{size}: {checked:?}");
    }
    validate::device_classes(&[class("a", "v"), thin("b", "v", "p", 1.0)]).unwrap();
}

#[test]
fn the_spare_is_ten_gib_unless_configured() {
    let said_text = [Some(50), Some(100), Some(0), None];
    let spares =
        said_text.map(|spare_gb| DeviceClass { spare_gb, ..class("a", "v") }.spare() >> 30);
    assert_eq!(spares, [50, 100, 0, 10]);
}

#[test]
fn without_a_default_an_empty_name_finds_nothing() {
    let config = Config { device_classes: vec![class("a", "v")], ..Config::default() };
    config.validate().unwrap();
    let said_text = Classes::new(&config).find("").unwrap_err().to_string();
    assert_eq!(said_text, "device-class not found: ");
}

#[test]
fn wrong_types_and_modes_are_refused() {
    Config::parse("device-classes: 7").unwrap_err();
    Config::parse("device-classes: [{name: a, volume-group: v, spare-gb: -1}]").unwrap_err();
    let text = "{socket-mode: '0999', device-classes: [{name: a, volume-group: v}]}";
    assert!(Config::parse(text).unwrap_err().starts_with("socket-mode: "));
    assert_eq!(Config::parse("").unwrap_err(), "should have at least one device-class");
}
