//! Files of the machine: not for machines, and of its keys not even for
//! administrators.

use std::{os::unix::fs::symlink, path::Path};

use prost::Message;
use selvage_api::machine::{CopyRequest, ListRequest, ReadRequest};

use super::*;

fn requests(path: &Path) -> [(&'static str, Vec<u8>); 3] {
    let text = path.to_str().unwrap().to_owned();
    [
        ("/machine.MachineService/Read", ReadRequest { path: text.clone() }.encode_to_vec()),
        ("/machine.MachineService/Copy", CopyRequest { root_path: text.clone() }.encode_to_vec()),
        (
            "/machine.MachineService/List",
            ListRequest { root: text, ..ListRequest::default() }.encode_to_vec(),
        ),
    ]
}

/// The certificate of a cloudlet once read the CA's private key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_reads_the_keys_of_the_machine() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let (data, elsewhere) = (selvage.data().to_owned(), tempfile::tempdir().unwrap());
    let link = elsewhere.path().join("link");
    symlink(data.join("pki"), &link).unwrap();
    let twin = elsewhere.path().join("twin");
    std::fs::hard_link(data.join("store.redb"), &twin).unwrap();
    let process = Path::new("/proc").join(selvage.pid().to_string());
    let key = std::fs::read_dir(data.join("pki"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .find(|name| name.to_str().unwrap().ends_with(".key"))
        .unwrap();
    let mut closed = vec![
        data.join("pki").join(&key),
        data.join("pki"),
        data.join("store.redb"),
        data.join("run/../pki").join(&key),
        data.join("joined/none"),
        link.join(&key),
        process.join("root").join(data.strip_prefix("/").unwrap()).join("pki").join(&key),
    ];
    let mut thieves = vec![admin.clone()];
    for (_, name) in STOLEN {
        thieves.push(admin.stolen(&selvage, name).await);
    }
    for thief in &thieves {
        for path in &closed {
            for (method, request) in requests(path) {
                let (replies, code, _) = thief.raw(method, &request).await;
                let got = (code, replies.len());
                assert_eq!(got, (Code::PermissionDenied, 0), "{method} {}", path.display());
            }
        }
    }
    // Their names can be seen, their contents not.
    closed = vec![twin, process.join("environ")];
    for path in closed {
        let (method, request) = requests(&path)[0].clone();
        let (replies, code, _) = admin.raw(method, &request).await;
        assert_eq!((code, replies.len()), (Code::PermissionDenied, 0), "{}", path.display());
    }
    let plain = elsewhere.path().join("plain");
    std::fs::write(&plain, "fine").unwrap();
    let (method, request) = requests(&plain)[0].clone();
    assert_eq!(admin.code(method, &request).await, Code::Ok);
}
