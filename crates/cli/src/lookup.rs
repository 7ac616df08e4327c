//! Methods by the names people type.

use selvage_api::{Method, methods};

use crate::{Error, suggest};

const LIST: &str = "`selvage api list` shows them all";

/// The method of `package.Service/Method`, with `.` for `/` if you like, and
/// with as much of the front left out as leaves no doubt.
pub(crate) fn method(name: &str) -> Result<&'static Method, Error> {
    let wanted = name.trim().trim_start_matches('/');
    let wanted = match (wanted.contains('/'), wanted.rsplit_once('.')) {
        (false, Some((service, method))) => format!("{service}/{method}"),
        _ => wanted.to_owned(),
    };
    let found: Vec<&'static Method> =
        methods().iter().filter(|method| goes_by(&method.path[1..], &wanted)).collect();
    match found.as_slice() {
        [one] => Ok(one),
        [] => Err(not_found(name, &wanted)),
        several => match several.iter().find(|method| method.path[1..] == wanted) {
            Some(exact) => Ok(exact),
            None => Err(Error::Invalid {
                message: format!("{} methods go by {name:?}", several.len()),
                hints: several.iter().take(5).map(|m| format!("say {}", &m.path[1..])).collect(),
            }),
        },
    }
}

fn goes_by(path: &str, wanted: &str) -> bool {
    path.strip_suffix(wanted)
        .is_some_and(|front| front.is_empty() || front.ends_with('.') || front.ends_with('/'))
}

fn not_found(name: &str, wanted: &str) -> Error {
    let (service, method) = wanted.rsplit_once('/').unwrap_or(("", wanted));
    let of_service: Vec<&Method> =
        methods().iter().filter(|method| goes_by(&method.service, service)).collect();
    if !service.is_empty() && !of_service.is_empty() {
        let names = of_service.iter().map(|method| method.name.as_str());
        let full = &of_service[0].service;
        return Error::Unknown {
            kind: "method",
            name: name.into(),
            suggestions: suggest::closest(method, names)
                .into_iter()
                .map(|method| format!("{full}/{method}"))
                .collect(),
            hint: format!("`selvage api list {full}` shows what it has"),
        };
    }
    // `a.b.Service` alone reads as method `Service` of `a.b`.
    let as_service = wanted.replace('/', ".");
    let mut services = methods().iter().filter(|method| goes_by(&method.service, &as_service));
    if let Some(first) = services.next() {
        return Error::Invalid {
            message: format!("{} is a service; a method of it must be named", first.service),
            hints: vec![format!("`selvage api list {}` shows what it has", first.service)],
        };
    }
    Error::Unknown {
        kind: "method",
        name: name.into(),
        suggestions: suggest::closest(wanted, methods().iter().map(|method| &method.path[1..])),
        hint: LIST.into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_method_goes_by_several_names() {
        for name in [
            "services.auth.AuthService/Login",
            "/services.auth.AuthService/Login",
            "services.auth.AuthService.Login",
            "AuthService/Login",
            "AuthService.Login",
        ] {
            assert_eq!(method(name).unwrap().path, "/services.auth.AuthService/Login", "{name}");
        }
    }

    #[test]
    fn typos_are_answered_with_what_may_have_been_meant() {
        let refusal = |name: &str| method(name).unwrap_err().to_string();
        assert_eq!(
            refusal("services.auth.AuthService/Logn"),
            r#"there is no method "services.auth.AuthService/Logn"; did you mean services.auth.AuthService/Login?"#
        );
        let text = refusal("service.auth.AuthServce/Login");
        assert!(text.contains("did you mean services.auth.AuthService/Login"), "{text}");
        assert_eq!(
            refusal("services.auth.AuthService"),
            "services.auth.AuthService is a service; a method of it must be named"
        );
        assert_eq!(refusal("qqqq"), r#"there is no method "qqqq""#);
    }
}
