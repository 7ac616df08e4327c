//! Which files of this machine may be images. Whoever may make an app names
//! its image: without a limit, any file here.

use std::path::{Component, Path, PathBuf};

use crate::{Error, Result};

/// Folders whose files, and those in folders below, may be images; or single
/// files that may.
#[derive(Debug, Clone, Default)]
pub struct ImageFolders {
    folders: Vec<PathBuf>,
    /// Data directory of this process, which has keys. A folder around it does not
    /// open it; one inside of it does open itself.
    data: Option<PathBuf>,
}

impl ImageFolders {
    pub fn new(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { folders: folders.into_iter().collect(), data: None }
    }

    /// Keeps the data directory closed, whatever folder it is in.
    pub(crate) fn without(self, data: &Path) -> Self {
        Self { data: Some(data.to_owned()), ..self }
    }

    /// Returns the real path of a file, if it may be an image. What is refused
    /// says nothing of whether there is such a file.
    pub(crate) fn find(&self, file: &Path) -> Result<PathBuf> {
        if !file.is_absolute() {
            return Err(Error::invalid("image_path", "file:// needs an absolute path"));
        }
        let data = self.data.as_ref().and_then(|data| data.canonicalize().ok());
        let found = really(file).filter(|found| {
            let closed = data.as_ref().filter(|data| found.starts_with(data));
            let folders = self.folders.iter().filter_map(|folder| folder.canonicalize().ok());
            let opens = |folder: &PathBuf| closed.is_none_or(|data| folder.starts_with(data));
            folders.into_iter().filter(opens).any(|folder| found.starts_with(folder))
        });
        found.ok_or_else(|| {
            let reason = "is in none of the folders of the cloudlet's machine that images may \
                          come from: whoever runs it names them in crm.image_folders";
            Error::invalid("image_path", reason)
        })
    }
}

/// With every link and `..` followed, also of what is not there: then as far
/// as it is.
fn really(file: &Path) -> Option<PathBuf> {
    let (there, found) =
        file.ancestors().find_map(|there| Some((there, there.canonicalize().ok()?)))?;
    let rest = file.strip_prefix(there).ok()?;
    let plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
    // A link to nothing would lead on as soon as there is something.
    let link = rest.components().next().is_some_and(|first| found.join(first).is_symlink());
    (plain && !link).then(|| if rest.as_os_str().is_empty() { found } else { found.join(rest) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn only_what_is_really_in_a_folder_may_be_an_image() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        let at = |name: &str| home.join(name);
        fs::create_dir_all(at("images/below")).unwrap();
        fs::create_dir(at("images-too")).unwrap();
        for name in ["images/a", "images/below/b", "images-too/c", "secret", "single"] {
            fs::write(at(name), "").unwrap();
        }
        symlink(at("secret"), at("images/out")).unwrap();
        symlink(at("images/a"), at("in")).unwrap();
        symlink(at("images"), at("folder")).unwrap();
        symlink("/", at("images/root")).unwrap();
        symlink(at("not-yet"), at("images/dangling")).unwrap();
        // A folder may be named by a link, and need not be there yet.
        let folders = ImageFolders::new([at("folder"), at("single"), at("later")]);
        let found = |name: &str| folders.find(&at(name)).ok();
        for (name, real) in [
            ("images/a", "images/a"),
            ("images/below/b", "images/below/b"),
            ("images/below/../a", "images/a"),
            ("images", "images"),
            ("in", "images/a"),
            ("folder/a", "images/a"),
            ("single", "single"),
            ("folder/missing", "images/missing"),
            ("images/missing/more", "images/missing/more"),
        ] {
            assert_eq!(found(name), Some(at(real)), "{name}");
        }
        for name in [
            "secret",
            "nothing",
            "images-too/c",
            "images/../secret",
            "images/out",
            "images/dangling",
            "images/root/etc/passwd",
            "images/missing/../../secret",
            "later/x",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
        let refusal = |path: &str| folders.find(Path::new(path)).unwrap_err().to_string();
        assert_eq!(refusal("/etc/passwd"), refusal("/etc/no-such-file"));
        assert!(refusal("/etc/passwd").contains("crm.image_folders"));
        assert!(refusal("relative").contains("needs an absolute path"));
        assert!(ImageFolders::default().find(&at("images/a")).is_err());
    }

    #[test]
    fn a_folder_around_the_data_directory_does_not_open_it() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        let at = |name: &str| home.join(name);
        fs::create_dir_all(at("data/images")).unwrap();
        fs::create_dir_all(at("data/pki")).unwrap();
        let folders = ImageFolders::new([home.clone(), at("data/images")]).without(&at("data"));
        for (name, opened) in
            [("web.tar", true), ("data/images/web.tar", true), ("data/pki/ca.key", false)]
        {
            fs::write(at(name), "").unwrap();
            assert_eq!(folders.find(&at(name)).is_ok(), opened, "{name}");
        }
    }
}
