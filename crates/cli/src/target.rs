//! Which server a command means, and what it shows there: flags, environment
//! and contexts put together.

use std::path::Path;

use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use selvage_kit::identity::Secret;

use crate::{
    Error, Global,
    config::{Context, Contexts, Files},
    connect::{Identity, Trust},
    endpoint::Endpoint,
    io::Io,
    suggest,
};

/// A server, and what to show it.
#[derive(Debug)]
pub(crate) struct Target {
    /// The context it comes from, if any.
    pub(crate) context: Option<String>,
    pub(crate) endpoint: Endpoint,
    /// Endpoints of the same region, tried in turn where the first is away.
    pub(crate) others: Vec<Endpoint>,
    pub(crate) trust: Trust,
    pub(crate) identity: Option<Identity>,
    pub(crate) token: Option<Secret>,
    /// True if the token is the one saved in the context.
    pub(crate) token_is_kept: bool,
}

impl Target {
    /// A server without anything to show.
    pub(crate) fn bare(endpoint: Endpoint, trust: Trust) -> Self {
        Self {
            context: None,
            endpoint,
            others: Vec::new(),
            trust,
            identity: None,
            token: None,
            token_is_kept: false,
        }
    }

    /// Resolves flags, environment and contexts, in that order.
    pub(crate) fn resolve(global: &Global, io: &mut Io) -> Result<Self, Error> {
        let files = Files::locate(io)?;
        let contexts = files.contexts()?;
        let (name, context, endpoint) = choose(global, &contexts)?;
        let others = match context.filter(|_| global.endpoint.is_none()) {
            Some(context) => {
                context.others.iter().map(|one| Endpoint::parse(one)).collect::<Result<_, _>>()?
            }
            None => Vec::new(),
        };
        let trust = trust(global, context)?;
        let identity = identity(global)?;
        let given = given_token(global, io)?;
        // Whoever shows a certificate means to be that machine, not the person
        // who logged in here.
        let kept = match (&given, &name) {
            (None, Some(name)) if identity.is_none() => files
                .credentials()?
                .logins
                .get(name)
                .and_then(|login| login.token_for(&endpoint.to_string())),
            _ => None,
        };
        let token_is_kept = kept.is_some();
        let token = given.or(kept);
        let open = std::iter::once(&endpoint).chain(&others).find(|one| !one.is_private());
        if let (Some(_), Some(open)) = (&token, open) {
            return Err(Error::Invalid {
                message: format!("a token would go to {open} in clear text"),
                hints: vec!["use https://, or call from the server itself".into()],
            });
        }
        Ok(Self { context: name, endpoint, others, trust, identity, token, token_is_kept })
    }
}

/// The context by its name.
pub(crate) fn named<'a>(contexts: &'a Contexts, name: &str) -> Result<&'a Context, Error> {
    contexts.contexts.get(name).ok_or_else(|| Error::Unknown {
        kind: "context",
        name: name.into(),
        suggestions: suggest::closest(name, contexts.contexts.keys().map(String::as_str)),
        hint: "`selvage context list` shows them all; `selvage login` makes one".into(),
    })
}

type Choice<'a> = (Option<String>, Option<&'a Context>, Endpoint);

fn choose<'a>(global: &Global, contexts: &'a Contexts) -> Result<Choice<'a>, Error> {
    let chosen = match (&global.context, &global.endpoint, &contexts.current) {
        (Some(name), _, _) => Some((name.as_str(), named(contexts, name)?)),
        (None, Some(endpoint), _) => contexts.leading_to(&Endpoint::parse(endpoint)?.to_string()),
        (None, None, Some(name)) => Some((name.as_str(), named(contexts, name)?)),
        (None, None, None) => None,
    };
    match (&global.endpoint, chosen) {
        (None, None) => Err(Error::NoServer),
        (None, Some((name, context))) => {
            Ok((Some(name.into()), Some(context), Endpoint::parse(&context.endpoint)?))
        }
        (Some(endpoint), None) => Ok((None, None, Endpoint::parse(endpoint)?)),
        (Some(endpoint), Some((name, context))) => {
            // The context's CA still says whom to trust; its token stays at
            // home unless the address is the same.
            Ok((Some(name.into()), Some(context), Endpoint::parse(endpoint)?))
        }
    }
}

fn trust(global: &Global, context: Option<&Context>) -> Result<Trust, Error> {
    if let Some(path) = &global.ca {
        return Ok(Trust::Only(certificates(path)?));
    }
    match context.and_then(|context| context.ca.as_deref()) {
        Some(pem) => Ok(Trust::Only(certificates_in(pem, "the context's ca")?)),
        None => Ok(Trust::System),
    }
}

fn identity(global: &Global) -> Result<Option<Identity>, Error> {
    let (Some(cert), Some(key)) = (&global.cert, &global.key) else { return Ok(None) };
    let chain = certificates(cert)?;
    let pem = std::fs::read(key).map_err(|source| Error::read(key, source))?;
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| Error::invalid(format!("{} holds no private key in PEM", key.display())))?;
    Ok(Some((chain, key)))
}

fn given_token(global: &Global, io: &mut Io) -> Result<Option<Secret>, Error> {
    if let Some(path) = &global.token_file {
        return secret_file(path, "token", io).map(Some);
    }
    Ok(io.var("SELVAGE_TOKEN").map(|token| Secret::new(token.trim())))
}

/// The first line of a file, or of stdin for `-`.
pub(crate) fn secret_file(path: &Path, what: &str, io: &mut Io) -> Result<Secret, Error> {
    let text = if path == Path::new("-") {
        io.read_input(&format!("the {what}"))?
    } else {
        std::fs::read_to_string(path).map_err(|source| Error::read(path, source))?
    };
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Secret::new(line)),
        _ => Err(Error::invalid(format!("{}: the first line must be the {what}", path.display()))),
    }
}

/// The certificates of a PEM file.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = std::fs::read_to_string(path).map_err(|source| Error::read(path, source))?;
    certificates_in(&pem, &path.display().to_string())
}

/// The certificates of a PEM text; `origin` names it in errors.
pub(crate) fn certificates_in(
    pem: &str,
    origin: &str,
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match all {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(Error::invalid(format!("{origin} holds no certificate in PEM"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn contexts() -> Contexts {
        let context = |endpoint: &str| Context { endpoint: endpoint.into(), ..Context::default() };
        Contexts {
            current: Some("home".into()),
            contexts: [
                ("home".to_owned(), context("https://home:1")),
                ("work".to_owned(), context("https://work:1")),
            ]
            .into(),
        }
    }

    fn chosen(context: Option<&str>, endpoint: Option<&str>) -> (Option<String>, String) {
        let global = Global {
            context: context.map(Into::into),
            endpoint: endpoint.map(Into::into),
            ..Global::default()
        };
        let contexts = contexts();
        let (name, _, endpoint) = choose(&global, &contexts).unwrap();
        (name, endpoint.to_string())
    }

    #[test]
    fn flags_come_before_the_current_context() {
        let is = |name: Option<&str>, endpoint: &str| (name.map(str::to_owned), endpoint.into());
        assert_eq!(chosen(None, None), is(Some("home"), "https://home:1"));
        assert_eq!(chosen(Some("work"), None), is(Some("work"), "https://work:1"));
        assert_eq!(chosen(None, Some("work:1")), is(Some("work"), "https://work:1"));
        assert_eq!(chosen(None, Some("https://new:1")), is(None, "https://new:1"));
    }

    #[test]
    fn an_unknown_context_is_answered_with_a_close_one() {
        let error = named(&contexts(), "hom").unwrap_err();
        assert_eq!(error.to_string(), r#"there is no context "hom"; did you mean home?"#);
    }
}
