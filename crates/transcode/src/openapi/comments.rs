//! Comments of the proto files, by the descriptor they stand at.

use std::collections::HashMap;

use prost_reflect::{DescriptorPool, FileDescriptor};

pub(super) struct Comments {
    by_place: HashMap<(String, Vec<i32>), String>,
}

impl Comments {
    pub(super) fn of(pool: &DescriptorPool) -> Self {
        let mut by_place = HashMap::new();
        for file in pool.files() {
            let Some(info) = &file.file_descriptor_proto().source_code_info else { continue };
            for location in &info.location {
                let text = location.leading_comments().trim();
                let text = if text.is_empty() { location.trailing_comments().trim() } else { text };
                if !text.is_empty() {
                    let place = (file.name().to_owned(), location.path.clone());
                    by_place.insert(place, unwrapped(text));
                }
            }
        }
        Self { by_place }
    }

    pub(super) fn get(&self, file: &FileDescriptor, path: &[i32]) -> Option<&str> {
        self.by_place.get(&(file.name().to_owned(), path.to_vec())).map(String::as_str)
    }
}

/// Lines of one paragraph become one line; blank lines stay.
fn unwrapped(text: &str) -> String {
    text.split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join("\n\n")
}
