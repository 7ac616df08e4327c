//! The filter of calls as the kernel takes it. `crun` compiles it for every
//! container, which takes longer than all else that it does; it is spared that
//! by giving it what it made of the same profile the first time.

use std::{fs, path::Path, sync::OnceLock};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// Annotation that `crun` reads instead of the profile, and others pass over.
const ANNOTATION: &str = "run.oci.seccomp_bpf_data";
/// File in which it leaves what it made, for programs that are run later.
const MADE: &str = "seccomp.bpf";

#[derive(Default)]
pub(super) struct Compiled(OnceLock<String>);

impl Compiled {
    /// Takes what was made for a container that has just been started; `state`
    /// is what the program keeps of it. Of those that leave nothing there is
    /// nothing to learn.
    pub(super) fn learn(&self, state: &Path) {
        if self.0.get().is_some() {
            return;
        }
        match fs::read(state.join(MADE)) {
            Ok(made) if !made.is_empty() => {
                let _ = self.0.set(STANDARD.encode(made));
            }
            _ => {}
        }
    }

    /// Adds it to a container that has the profile.
    pub(super) fn spare(&self, document: &mut Value) {
        if let Some(compiled) = self.0.get().filter(|_| document["linux"]["seccomp"].is_object()) {
            document["annotations"][ANNOTATION] = json!(compiled);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn only_what_was_made_is_given_and_only_to_who_has_the_profile() {
        let state = tempfile::tempdir().unwrap();
        let compiled = Compiled::default();
        let filtered = json!({ "annotations": { "a": "b" }, "linux": { "seccomp": {} } });
        let given = |compiled: &Compiled, mut document: Value| {
            compiled.spare(&mut document);
            document["annotations"][ANNOTATION].clone()
        };
        compiled.learn(state.path());
        fs::write(state.path().join(MADE), "").unwrap();
        compiled.learn(state.path());
        assert_eq!(given(&compiled, filtered.clone()), Value::Null);
        fs::write(state.path().join(MADE), "made").unwrap();
        compiled.learn(state.path());
        assert_eq!(given(&compiled, filtered), "bWFkZQ==");
        assert_eq!(given(&compiled, json!({ "annotations": {}, "linux": {} })), Value::Null);
    }
}
