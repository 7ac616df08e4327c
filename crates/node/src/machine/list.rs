//! Lists of files.

use std::{ops::ControlFlow, path::Path};

use rustix::fs::{FileType, Stat};
use selvage_api::machine::{FileInfo, ListRequest};
use tokio::sync::mpsc;
use tonic::Status;

use super::{
    Error,
    confine::{Roots, plain},
    walk::{self, Entry},
};

/// Returns the depth of a request.
pub(super) fn depth(request: &ListRequest) -> Result<Option<usize>, Error> {
    match (request.recurse, usize::try_from(request.recursion_depth)) {
        (false, Ok(_)) => Ok(Some(1)),
        (true, Ok(0)) => Ok(None),
        (true, Ok(depth)) => Ok(Some(depth)),
        (_, Err(_)) => Err(Error::Invalid {
            field: "recursion_depth",
            reason: format!("must not be negative, is {}", request.recursion_depth),
        }),
    }
}

/// Sends what is below the root of the request.
pub(super) fn send(
    roots: &Roots,
    request: &ListRequest,
    files: &mpsc::Sender<Result<FileInfo, Status>>,
) -> Result<(), Error> {
    let root = if request.root.is_empty() { "/" } else { &request.root };
    let depth = depth(request)?;
    let start = roots.locate(root)?;
    let _ = walk::walk(&start, depth, &mut |entry| {
        let info = describe(Path::new(root), entry);
        files.blocking_send(Ok(info)).map_or(ControlFlow::Break(()), ControlFlow::Continue)
    });
    Ok(())
}

fn describe(root: &Path, entry: Entry<'_>) -> FileInfo {
    let name =
        if entry.relative == Path::new(".") { root.to_owned() } else { root.join(entry.relative) };
    let mut info = FileInfo {
        name: name.to_string_lossy().into_owned(),
        relative_name: entry.relative.to_string_lossy().into_owned(),
        link: entry.link.map(|link| link.to_string_lossy().into_owned()).unwrap_or_default(),
        ..FileInfo::default()
    };
    match entry.stat {
        Ok(stat) => {
            info.size = stat.st_size;
            info.mode = go_mode(&stat);
            info.modified = stat.st_mtime;
            info.is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        }
        Err(error) => info.error = plain(error),
    }
    info
}

/// Type and permissions in the layout of Go's `os.FileMode`, which is what
/// the contract has on the wire.
fn go_mode(stat: &Stat) -> u32 {
    const SPECIAL: [(u32, u32); 3] = [(0o4000, 1 << 23), (0o2000, 1 << 22), (0o1000, 1 << 20)];
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => 0,
        FileType::Directory => 1 << 31,
        FileType::Symlink => 1 << 27,
        FileType::BlockDevice => 1 << 26,
        FileType::CharacterDevice => 1 << 26 | 1 << 21,
        FileType::Fifo => 1 << 25,
        FileType::Socket => 1 << 24,
        _ => 1 << 19,
    };
    let special = SPECIAL.iter().filter(|(unix, _)| stat.st_mode & unix != 0);
    special.fold(kind | stat.st_mode & 0o777, |mode, (_, go)| mode | go)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    fn list(root: &str, recurse: bool, recursion_depth: i32) -> Result<Vec<FileInfo>, Error> {
        let request = ListRequest { root: root.into(), recurse, recursion_depth };
        let (sender, mut receiver) = mpsc::channel(4096);
        send(&Roots::new(Vec::new(), super::super::guard::Guard::default()), &request, &sender)?;
        drop(sender);
        let mut files = Vec::new();
        while let Some(file) = receiver.blocking_recv() {
            files.push(file.unwrap());
        }
        Ok(files)
    }

    fn names(files: &[FileInfo]) -> Vec<&str> {
        files.iter().map(|file| file.relative_name.as_str()).collect()
    }

    #[test]
    fn depth_counts_the_same_everywhere() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("b/c/d")).unwrap();
        fs::write(folder.path().join("a"), "12345").unwrap();
        let root = folder.path().to_str().unwrap();
        assert_eq!(names(&list(root, false, 0).unwrap()), [".", "a", "b"]);
        assert_eq!(names(&list(root, true, 1).unwrap()), [".", "a", "b"]);
        assert_eq!(names(&list(root, true, 2).unwrap()), [".", "a", "b", "b/c"]);
        assert_eq!(names(&list(root, true, 0).unwrap()), [".", "a", "b", "b/c", "b/c/d"]);
        assert!(list(root, true, -1).is_err());
    }

    #[test]
    fn depth_at_the_root_of_the_machine_is_not_off_by_one() {
        let files = list("/", true, 1).unwrap();
        assert_eq!((files[0].name.as_str(), files[0].relative_name.as_str()), ("/", "."));
        let deep = files.iter().find(|file| file.relative_name.contains('/'));
        assert!(deep.is_none(), "{deep:?}");
        assert!(files.iter().any(|file| file.name == "/proc" && file.is_dir), "{files:?}");
        assert_eq!(names(&list("", false, 0).unwrap()), names(&files));
    }

    #[test]
    fn modes_are_laid_out_as_go_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "12345").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4751)).unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        let sticky = fs::Permissions::from_mode(0o1777);
        fs::set_permissions(folder.path().join("folder"), sticky).unwrap();
        symlink("nowhere", folder.path().join("link")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap());
        let files = list(folder.path().to_str().unwrap(), false, 0).unwrap();
        let mode = |name: &str| files.iter().find(|file| file.relative_name == name).unwrap().mode;
        assert_eq!(mode("file"), 1 << 23 | 0o751);
        assert_eq!(mode("folder"), 1 << 31 | 1 << 20 | 0o777);
        assert_eq!(mode("link") >> 9, 1 << (27 - 9));
        assert_eq!(mode("socket") >> 24, 1);
        let link = files.iter().find(|file| file.relative_name == "link").unwrap();
        assert_eq!(link.link, "nowhere");
        let null = list("/dev/null", false, 0).unwrap();
        assert_eq!(null[0].mode & !0o777, 1 << 26 | 1 << 21);
        let size = files.iter().find(|file| file.relative_name == "file").unwrap().size;
        assert_eq!(size, 5);
    }

    #[test]
    fn a_root_that_is_not_there_is_an_error() {
        let error = list("/no/such/folder", false, 0).unwrap_err();
        assert_eq!(error.code(), selvage_api::Code::NotFound);
        assert_eq!(error.to_string(), "/no/such/folder: no such file or directory");
        assert!(list("etc", false, 0).is_err());
    }
}
