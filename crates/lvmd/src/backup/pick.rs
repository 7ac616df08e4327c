//! Which volume is meant.

use super::{Error, Result};
use crate::{Volume, Volumes};

/// A volume with the group and class it was found in.
#[derive(Debug, Clone)]
pub(crate) struct Picked {
    pub(crate) group: String,
    pub(crate) class: String,
    pub(crate) volume: Volume,
}

/// The one volume of that name, or of that group and name, in any class.
pub(crate) fn volume(volumes: &Volumes, handle: &str) -> Result<Picked> {
    if handle.is_empty() {
        return Err(Error::Missing("volume_handle"));
    }
    let (group, name) = match handle.split_once('/') {
        Some((group, name)) => (Some(group), name),
        None => (None, handle),
    };
    let classes = volumes.classes();
    let groups = volumes.groups();
    let mut found: Vec<Picked> = Vec::new();
    for class in classes.all() {
        if group.is_some_and(|group| group != class.volume_group) {
            continue;
        }
        let there = groups.get(&class.volume_group).and_then(|group| group.volumes.get(name));
        let Some(volume) = there.filter(|volume| class.holds(volume) && !volume.is_pending())
        else {
            continue;
        };
        // Two classes may share a pool.
        if found.iter().all(|known| known.group != class.volume_group) {
            found.push(Picked {
                group: class.volume_group.clone(),
                class: class.name.clone(),
                volume: volume.clone(),
            });
        }
    }
    match <[Picked; 1]>::try_from(found) {
        Ok([one]) => Ok(one),
        Err(_) => Err(Error::NoVolume(handle.to_owned())),
    }
}

/// A class through which a group can be reached.
pub(crate) fn class_of(volumes: &Volumes, group: &str) -> Result<String> {
    let classes = volumes.classes();
    let class = classes.all().iter().find(|class| class.volume_group == group);
    let class = class.ok_or_else(|| crate::Error::GroupNotFound(group.to_owned()))?;
    Ok(class.name.clone())
}
