//! Paths that callers name, opened so that they lead nowhere else.
//!
//! The kernel itself refuses to leave the root while it follows a path
//! (`openat2`), so no symbolic link and no rename at the wrong moment leads
//! out. What is opened is at first only a place (`O_PATH`): looking at it has
//! no side effects, whatever it is.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat, openat2},
    io::Errno,
};

use super::{
    Error,
    guard::{Guard, ProtectedFiles},
};

/// Attempts at a path that is being renamed while it is followed.
const ATTEMPTS: usize = 16;

/// The folders below which everything may be looked at but what is guarded.
#[derive(Debug, Clone)]
pub(super) struct Roots {
    folders: Vec<PathBuf>,
    /// None for files that the machine's owner chose, not the caller.
    guard: Option<Guard>,
}

impl Roots {
    /// Creates roots; without folders, the whole machine is served.
    pub(super) fn new(mut folders: Vec<PathBuf>, guard: Guard) -> Self {
        if folders.is_empty() {
            folders.push(PathBuf::from("/"));
        }
        Self { folders, guard: Some(guard) }
    }

    /// Returns the roots for a path that the configuration names.
    pub(super) fn of_owner() -> Self {
        Self { folders: vec![PathBuf::from("/")], guard: None }
    }

    /// Follows an absolute path to what it names.
    pub(super) fn locate(&self, path: &str) -> Result<Located, Error> {
        let protected = self.guard.as_ref().map(Guard::protected);
        match (self.find(path), protected) {
            (Ok((fd, stat)), protected) => {
                if protected.as_ref().is_some_and(|protected| protected.covers_fd(fd.as_fd())) {
                    return Err(Error::Protected { path: path.to_owned() });
                }
                Ok(Located { fd, stat, path: path.to_owned(), protected })
            }
            // That it is not there is told only where its folder may be seen.
            (Err(Error::System { .. }), Some(protected)) if self.leads_into(path, &protected) => {
                Err(Error::Protected { path: path.to_owned() })
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Returns whether the longest part of a path that can be followed is protected.
    fn leads_into(&self, path: &str, protected: &ProtectedFiles) -> bool {
        let parents = Path::new(path).ancestors().skip(1).filter_map(Path::to_str);
        let nearest = parents.filter_map(|parent| self.find(parent).ok()).next();
        nearest.is_some_and(|(fd, _)| protected.covers_fd(fd.as_fd()))
    }

    fn find(&self, path: &str) -> Result<(OwnedFd, Stat), Error> {
        if !path.starts_with('/') {
            return Err(Error::NotAbsolute { path: path.to_owned() });
        }
        if path.contains('\0') {
            return Err(Error::BadPath { path: path.to_owned(), reason: "has a NUL in it" });
        }
        let asked = Path::new(path);
        let within = self.folders.iter().filter(|root| asked.starts_with(root));
        let root = within.max_by_key(|root| root.components().count());
        let root = root.ok_or_else(|| Error::Outside { path: path.to_owned() })?;
        let inside = asked.strip_prefix(root).unwrap_or(Path::new(""));
        let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
        let fd = follow(root, inside).map_err(|error| Error::of(path, error))?;
        let stat = fstat(&fd).map_err(|error| Error::of(path, error))?;
        Ok((fd, stat))
    }
}

fn follow(root: &Path, inside: &Path) -> Result<OwnedFd, Errno> {
    let base = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Below "/" an absolute link means what it says; below another root it
    // leads out.
    let stay = if root == Path::new("/") { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
    let resolve = stay | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut attempts = 0;
    loop {
        match openat2(&base, inside, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if attempts < ATTEMPTS => attempts += 1,
            outcome => return outcome,
        }
    }
}

/// File or folder that a path has led to.
pub(super) struct Located {
    fd: OwnedFd,
    pub(super) stat: Stat,
    path: String,
    /// Protected files and folders below it.
    protected: Option<ProtectedFiles>,
}

impl Located {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Its contents, if it is a regular file. Reading never waits: what would
    /// (`/proc/kmsg`) is at its end.
    pub(super) fn open_file(&self) -> Result<File, Error> {
        if self.kind() != FileType::RegularFile {
            return Err(Error::NotAFile);
        }
        // Through our own descriptor: the very thing that was looked at.
        let own = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(CWD, own, flags, Mode::empty());
        let file = file.map(File::from).map_err(|error| Error::of(&self.path, error))?;
        match self.refuse(&file) {
            Some(_) => Err(Error::Protected { path: self.path.clone() }),
            None => Ok(file),
        }
    }

    /// Returns the reason why a file must not be read by callers; `None` if it
    /// may.
    pub(super) fn refuse(&self, file: &File) -> Option<&'static str> {
        self.protected.as_ref().and_then(|protected| protected.check(file).err())
    }

    /// Returns whether a folder that was opened on a walk is not entered.
    pub(super) fn closed(&self, folder: &OwnedFd) -> bool {
        self.protected.as_ref().is_some_and(|protected| protected.covers_fd(folder.as_fd()))
    }

    /// Its entries, if it is a folder.
    pub(super) fn open_folder(&self) -> Result<OwnedFd, Errno> {
        openat(&self.fd, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }
}

/// Error text of the system, in the words that everybody knows.
pub(super) fn plain(error: Errno) -> String {
    let text = io::Error::from(error).to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{fs, io::Read, os::unix::fs::symlink};

    use selvage_api::Code;

    use super::*;

    fn read(roots: &Roots, path: &Path) -> Result<String, Code> {
        let located = roots.locate(path.to_str().unwrap()).map_err(|error| error.code())?;
        let mut text = String::new();
        let mut file = located.open_file().map_err(|error| error.code())?;
        file.read_to_string(&mut text).unwrap();
        Ok(text)
    }

    #[test]
    fn no_path_leads_out_of_its_root() {
        let folder = tempfile::tempdir().unwrap();
        let (root, secret) = (folder.path().join("root"), folder.path().join("secret"));
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(&secret, "canary").unwrap();
        fs::write(root.join("sub/plain"), "fine").unwrap();
        symlink(&secret, root.join("absolute")).unwrap();
        symlink("../secret", root.join("relative")).unwrap();
        symlink("../..", root.join("sub/up")).unwrap();
        symlink("plain", root.join("sub/within")).unwrap();
        let roots = Roots::new(vec![root.clone()], Guard::default());
        assert_eq!(read(&roots, &root.join("sub/plain")).unwrap(), "fine");
        assert_eq!(read(&roots, &root.join("sub/within")).unwrap(), "fine");
        for out in ["absolute", "relative", "sub/up/secret", "../secret", "sub/../../secret"] {
            assert_eq!(read(&roots, &root.join(out)), Err(Code::PermissionDenied), "{out}");
        }
        assert_eq!(read(&roots, &secret), Err(Code::PermissionDenied));
        assert_eq!(read(&roots, Path::new("/etc/passwd")), Err(Code::PermissionDenied));
        let twin = PathBuf::from(format!("{}-twin", root.display()));
        assert_eq!(read(&roots, &twin), Err(Code::PermissionDenied));
    }

    #[test]
    fn links_within_the_whole_machine_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "fine").unwrap();
        symlink(folder.path().join("file"), folder.path().join("link")).unwrap();
        let roots = Roots::new(Vec::new(), Guard::default());
        assert_eq!(read(&roots, &folder.path().join("link")).unwrap(), "fine");
        assert_eq!(read(&roots, &folder.path().join("none")), Err(Code::NotFound));
        assert_eq!(read(&roots, folder.path()), Err(Code::InvalidArgument));
        assert_eq!(
            read(&roots, Path::new("/proc/self/root/etc/passwd")),
            Err(Code::PermissionDenied)
        );
    }
}
