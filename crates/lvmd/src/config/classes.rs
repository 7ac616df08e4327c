//! Finding a device class, and what a class says about its volumes.

use std::collections::HashMap;

use super::{Config, DeviceClass};
use crate::{Error, Group, Pool, Result, Volume};

/// The classes in force.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    classes: Vec<DeviceClass>,
    options: HashMap<String, Vec<String>>,
    pub(crate) strict_remove: bool,
}

impl Classes {
    /// Those of a configuration.
    pub fn new(config: &Config) -> Self {
        let options = config.lvcreate_option_classes.iter();
        Self {
            classes: config.device_classes.clone(),
            options: options.map(|class| (class.name.clone(), class.options.clone())).collect(),
            strict_remove: config.strict_remove,
        }
    }

    /// All of them, in the order of the file.
    pub fn all(&self) -> &[DeviceClass] {
        &self.classes
    }

    /// The default one, if there is one.
    pub fn default_class(&self) -> Option<&DeviceClass> {
        self.classes.iter().find(|class| class.default)
    }

    /// A class by its name; the default one for an empty name.
    pub fn find(&self, name: &str) -> Result<&DeviceClass> {
        let default = if name.is_empty() { self.default_class() } else { None };
        default
            .or_else(|| self.classes.iter().find(|class| class.name == name))
            .ok_or_else(|| Error::ClassNotFound(name.to_owned()))
    }

    /// Returns what lvcreate is told besides name, size and tags: the options of the
    /// option class, or those of the device class.
    pub fn options(&self, class: &DeviceClass, option_class: &str) -> Result<Vec<String>> {
        if !option_class.is_empty() {
            let known = self.options.get(option_class);
            return known.cloned().ok_or_else(|| Error::OptionClass(option_class.to_owned()));
        }
        let mut options = Vec::new();
        if let Some(stripe) = class.stripe.filter(|stripe| *stripe > 0) {
            options.extend(["-i".to_owned(), stripe.to_string()]);
            if !class.stripe_size.is_empty() {
                options.extend(["-I".to_owned(), class.stripe_size.clone()]);
            }
        }
        options.extend(class.lvcreate_options.iter().cloned());
        Ok(options)
    }
}

impl DeviceClass {
    /// Bytes that volumes of this class may still take, its spare included.
    pub fn free_in(&self, group: &Group) -> Result<u64> {
        if group.missing > 0 {
            let (group, missing) = (group.name.clone(), group.missing);
            return Err(Error::GroupIncomplete { group, missing });
        }
        let Some(pool) = self.pool() else { return Ok(group.free) };
        let missing = || Error::PoolNotFound { group: group.name.clone(), pool: pool.name.clone() };
        let held = group.pools.get(&pool.name).ok_or_else(missing)?;
        Ok(overprovisioned(held.size, pool.overprovision_ratio).saturating_sub(held.promised))
    }

    /// Size of what its volumes are in, and what they were promised of it.
    /// None if it is not there.
    pub fn holding(&self, group: &Group) -> Option<Pool> {
        match self.pool() {
            Some(pool) => group.pools.get(&pool.name).copied(),
            None => Some(Pool {
                size: group.size,
                promised: group.size.saturating_sub(group.free),
                ..Pool::default()
            }),
        }
    }

    /// Returns whether a volume belongs to this class.
    pub fn holds(&self, volume: &Volume) -> bool {
        volume.pool.as_deref() == self.pool().map(|pool| pool.name.as_str())
    }
}

/// Returns what a pool may promise. Sizes are far below what a float counts exactly.
fn overprovisioned(size: u64, ratio: f64) -> u64 {
    (size as f64 * ratio).floor() as u64
}
