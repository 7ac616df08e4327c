//! The rules for a configuration. The sentences are the original's.

use std::collections::HashSet;

use super::{BackendKind, Config, DeviceClass};

const LONGEST_NAME: usize = 63;

type Checked = Result<(), String>;

/// The first thing that is wrong with the classes, in their order.
pub(super) fn device_classes(classes: &[DeviceClass]) -> Checked {
    if classes.is_empty() {
        return Err("should have at least one device-class".into());
    }
    let mut names = HashSet::new();
    let mut homes = HashSet::new();
    let mut default = false;
    for class in classes {
        name(class)?;
        if class.volume_group.is_empty() {
            return Err(format!("volume group name should not be empty: {}", class.name));
        }
        kind(class)?;
        stripe_size(class)?;
        if !names.insert(class.name.as_str()) {
            return Err(format!("duplicate device-class name: {}", class.name));
        }
        let home = match class.pool() {
            None => class.volume_group.clone(),
            Some(pool) => format!("{}/{}", class.volume_group, pool.name),
        };
        if homes.contains(&home) {
            return Err(format!("duplicate volumegroup/thinpool name: {}, {home}", class.name));
        }
        homes.insert(home);
        if class.default && std::mem::replace(&mut default, true) {
            return Err("should not have multiple default device-class".into());
        }
    }
    Ok(())
}

fn name(class: &DeviceClass) -> Checked {
    let name = &class.name;
    if name.is_empty() {
        return Err("device-class name should not be empty".into());
    }
    if name.len() > LONGEST_NAME {
        return Err(format!("device-class name is too long: {name}"));
    }
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    if !outer(bytes.first()) || !outer(bytes.last()) || !name.bytes().all(inner) {
        return Err(format!(
            "device-class name should consist of alphanumeric characters, '-', '_' or '.', and should start and end with an alphanumeric character: {name}"
        ));
    }
    Ok(())
}

fn kind(class: &DeviceClass) -> Checked {
    let name = &class.name;
    match class.r#type.as_str() {
        "" | "thick" => return Ok(()),
        "thin" => {}
        _ => {
            return Err("target 'type' of device-class can be one of 'thick' or 'thin' or empty to default to 'thick'".into());
        }
    }
    let Some(pool) = &class.thin_pool else {
        return Err(format!("device class type is thin but thinpool config is empty: {name}"));
    };
    if pool.name.is_empty() {
        return Err(format!("thinpool name should not be empty: {name}"));
    }
    if pool.overprovision_ratio.is_nan() || pool.overprovision_ratio < 1.0 {
        return Err(format!(
            "overprovision ratio for thin pool {} in device class {name} should be 1.0 or more",
            pool.name
        ));
    }
    Ok(())
}

fn stripe_size(class: &DeviceClass) -> Checked {
    let text = class.stripe_size.as_str();
    let number = match text.char_indices().last() {
        Some((at, unit)) if "kmgtpebs".contains(unit.to_ascii_lowercase()) => &text[..at],
        _ => text,
    };
    if number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(());
    }
    Err(format!("stripe-size format is \"Size[k|UNIT]\": {}", class.name))
}

/// Checks what only the loop backend needs.
pub(super) fn loop_files(config: &Config) -> Checked {
    if config.backend() != BackendKind::Loop {
        return Ok(());
    }
    let files = &config.loop_files;
    if !files.directory.is_absolute() {
        return Err("loop.directory should be an absolute path".into());
    }
    let mut names = HashSet::new();
    for group in &files.groups {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte);
        let leads = group.name.starts_with(['.', '-']);
        if group.name.is_empty() || leads || !group.name.bytes().all(fits) {
            return Err(format!("loop.groups: {:?} cannot be the name of a group", group.name));
        }
        if !names.insert(group.name.as_str()) {
            return Err(format!("loop.groups: duplicate group: {}", group.name));
        }
        if group.thin_pools.iter().any(|pool| crate::names::check_name(&pool.name).is_err()) {
            return Err(format!("loop.groups: a pool of {} has a wrong name", group.name));
        }
        const LARGEST: u64 = 1 << 33;
        let sizes = group.thin_pools.iter().map(|pool| pool.size_gb);
        if sizes.chain([group.size_gb]).any(|size| size > LARGEST) {
            return Err(format!("loop.groups: a size of {} is too large", group.name));
        }
    }
    Ok(())
}
