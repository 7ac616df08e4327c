//! Charts, by the program `helm`: it is given words, never a line for a shell.

use std::{
    ffi::OsString,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use selvage_api::edgeproto::App;
use selvage_runtime::private_directory;

use super::{manifest, names::InstanceNames};
use crate::{Error, Result, error::During};

/// The contract's word for a file of values, in the original's spelling and in
/// the right one.
const VALUES: [&str; 2] = ["hemlCustomizationYaml", "helmCustomizationYaml"];

/// One release.
pub(super) struct Helm<'a> {
    /// The program.
    pub(super) program: &'a Path,
    pub(super) kubeconfig: Option<&'a Path>,
    /// Where files of values are while helm reads them.
    pub(super) folder: PathBuf,
    pub(super) names: &'a InstanceNames,
}

/// Files that are gone when this is.
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "not removed");
            }
        }
    }
}

impl Helm<'_> {
    /// What would be made, checked as any manifest is; nothing is made.
    pub(super) async fn rendered(&self, app: &App) -> Result<Vec<manifest::Object>> {
        let files = self.values(app)?;
        let text = self.run("template", &[], &files, &[&self.names.release, chart(app)?]).await?;
        let objects = manifest::read(&text)?;
        objects.iter().try_for_each(|object| object.check(&self.names.namespace))?;
        Ok(objects)
    }

    /// Makes the release, or makes it as it should be.
    pub(super) async fn install(&self, app: &App) -> Result<()> {
        let files = self.values(app)?;
        let words: [&str; 2] = [&self.names.release, chart(app)?];
        match self.run("upgrade", &["--install"], &files, &words).await {
            // Nobody else works on this release: who did is dead.
            Err(error) if error.to_string().contains("another operation") => {
                self.uninstall().await?;
                self.run("upgrade", &["--install"], &files, &words).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    /// What was made.
    pub(super) async fn made(&self) -> Result<Vec<manifest::Object>> {
        let files = Files(Vec::new());
        let text = self.run("get", &["manifest"], &files, &[&self.names.release]).await?;
        manifest::read(&text)
    }

    pub(super) async fn uninstall(&self) -> Result<()> {
        let files = Files(Vec::new());
        match self.run("uninstall", &["--wait"], &files, &[&self.names.release]).await {
            Err(Error::State { reason }) if reason.contains("not found") => Ok(()),
            other => other.map(drop),
        }
    }

    fn values(&self, app: &App) -> Result<Files> {
        let mut files = Files(Vec::new());
        let given = app.configs.iter().filter(|config| VALUES.contains(&config.kind.as_str()));
        for (number, config) in given.enumerate() {
            private_directory(&self.folder).during("making a folder for values")?;
            let path = self.folder.join(format!("{}-{number}.yaml", self.names.release));
            let mut options = std::fs::OpenOptions::new();
            let file = options.create(true).truncate(true).write(true).mode(0o600).open(&path);
            let mut file = file.during("writing a file of values")?;
            files.0.push(path);
            io::Write::write_all(&mut file, config.config.as_bytes())
                .during("writing a file of values")?;
        }
        Ok(files)
    }

    async fn run(
        &self,
        command: &str,
        flags: &[&str],
        values: &Files,
        words: &[&str],
    ) -> Result<String> {
        let mut argv: Vec<OsString> = vec![command.into()];
        argv.extend(flags.iter().map(OsString::from));
        argv.extend(["--namespace".into(), OsString::from(&self.names.namespace)]);
        for path in &values.0 {
            argv.extend(["--values".into(), path.into()]);
        }
        // What comes after this is never taken for a flag.
        argv.push("--".into());
        argv.extend(words.iter().map(OsString::from));
        let mut helm = tokio::process::Command::new(self.program);
        helm.args(argv).stdin(Stdio::null()).kill_on_drop(true);
        if let Some(kubeconfig) = self.kubeconfig {
            helm.env("KUBECONFIG", kubeconfig);
        }
        let output = match helm.output().await {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let reason = "deployment helm needs the program helm on the crm's machine, and \
                              there is none";
                return Err(Error::state(reason));
            }
            Err(source) => return Err(Error::Io { doing: "running helm", source }),
        };
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let ended = || format!("helm {command} ended with {}", output.status);
        Err(Error::state(if words.is_empty() { ended() } else { words }))
    }
}

fn chart(app: &App) -> Result<&str> {
    if app.image_path.is_empty() {
        return Err(Error::invalid("image_path", "a chart is needed, and none is given"));
    }
    Ok(&app.image_path)
}
