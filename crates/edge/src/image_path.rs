//! Names in the paths of images, as controller and agents write them.

/// Returns a name as part of the path of an image.
pub fn image_path_part(name: &str) -> String {
    name.chars()
        .filter_map(|letter| match letter {
            ' ' | ',' => None,
            '&' => Some('-'),
            '!' => Some('.'),
            other => Some(other),
        })
        .collect()
}

/// Returns the folder of a developer in the registry of a site. Registries know
/// small letters only.
pub fn registry_folder(developer: &str) -> String {
    image_path_part(developer).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_parts_of_paths() {
        assert_eq!(image_path_part("AT&T Inc."), "AT-TInc.");
        assert_eq!(registry_folder("Acme, Co!"), "acmeco.");
    }
}
