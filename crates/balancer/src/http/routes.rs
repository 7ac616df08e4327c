//! Routes from paths to services.

use std::{collections::HashMap, sync::Arc};

use crate::frontend::Frontend;

/// Services by their prefixes.
pub(crate) struct Routes<T = Arc<Frontend>> {
    by_prefix: HashMap<String, T>,
    /// Segments of the longest prefix.
    deepest: usize,
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Self { by_prefix: HashMap::new(), deepest: 0 }
    }
}

/// Target of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route<'a, T> {
    /// Route to a service, which sees the path from `rest` on.
    Service {
        service: &'a T,
        rest: usize,
    },
    /// Path of a service without the slash at its end.
    Bare,
    Nowhere,
}

impl Routes {
    pub(crate) fn new(frontends: Vec<Arc<Frontend>>) -> Self {
        frontends.into_iter().map(|frontend| (frontend.prefix.clone(), frontend)).collect()
    }
}

impl<T> FromIterator<(String, T)> for Routes<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(services: I) -> Self {
        let by_prefix: HashMap<_, _> = services.into_iter().collect();
        let depth = |prefix: &String| prefix.split('/').count();
        let deepest = by_prefix.keys().map(depth).max().unwrap_or(0);
        Self { by_prefix, deepest }
    }
}

impl<T> Routes<T> {
    /// The service with the longest prefix that ends where a segment of the
    /// path ends.
    pub(crate) fn find(&self, path: &str) -> Route<'_, T> {
        let Some(relative) = path.strip_prefix('/') else { return Route::Nowhere };
        let ends = relative.match_indices('/').map(|(end, _)| end);
        let ends: Vec<_> = ends.chain([relative.len()]).take(self.deepest).collect();
        for end in ends.into_iter().rev() {
            if end > 0
                && let Some(service) = self.by_prefix.get(&relative[..end])
            {
                let bare = end == relative.len();
                return if bare { Route::Bare } else { Route::Service { service, rest: end + 1 } };
            }
        }
        match self.by_prefix.get("") {
            Some(service) => Route::Service { service, rest: 0 },
            None => Route::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn routes(prefixes: &[&'static str]) -> Routes<&'static str> {
        prefixes.iter().map(|prefix| ((*prefix).to_owned(), *prefix)).collect()
    }

    #[test]
    fn the_longest_prefix_on_a_border_wins() {
        let routes = routes(&["acme", "acme/shop10/p80", "acme/shop10"]);
        let cases = [
            ("/acme/", Some(("acme", "/"))),
            ("/acme/x", Some(("acme", "/x"))),
            ("/acme/shop10/x", Some(("acme/shop10", "/x"))),
            ("/acme/shop10/p80/a/b", Some(("acme/shop10/p80", "/a/b"))),
            ("/acme/shop10/p801/a", Some(("acme/shop10", "/p801/a"))),
            ("/acme/shop10/p80//a", Some(("acme/shop10/p80", "//a"))),
            ("/acme/../other", Some(("acme", "/../other"))),
            ("/acmeshop", None),
            ("/ACME/", None),
            ("//acme/", None),
            ("/%61cme/", None),
            ("/", None),
            ("*", None),
            ("", None),
        ];
        for (path, expected) in cases {
            let found = match routes.find(path) {
                Route::Service { service, rest } => Some((*service, &path[rest..])),
                _ => None,
            };
            assert_eq!(found, expected, "{path}");
        }
        assert_eq!(routes.find("/acme"), Route::Bare);
        assert_eq!(routes.find("/acme/shop10/p80"), Route::Bare);
    }

    #[test]
    fn an_empty_prefix_takes_the_rest_as_it_is() {
        let routes = routes(&["", "a"]);
        assert_eq!(routes.find("/"), Route::Service { service: &"", rest: 0 });
        assert_eq!(routes.find("/b/c"), Route::Service { service: &"", rest: 0 });
        assert_eq!(routes.find("/a/c"), Route::Service { service: &"a", rest: 2 });
        assert_eq!(routes.find("*"), Route::Nowhere);
    }

    #[test]
    fn long_paths_are_looked_at_only_as_deep_as_prefixes_go() {
        let path = "/a".repeat(100_000);
        assert_eq!(routes(&["b"]).find(&path), Route::Nowhere);
        assert_eq!(routes(&["a/a"]).find(&path), Route::Service { service: &"a/a", rest: 4 });
    }
}
