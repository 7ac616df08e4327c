//! Checks of a service before anything is done about it.

use std::collections::BTreeSet;

use crate::{Error, Port, Protocol, Service, error::Result};

/// Checks a service and brings its prefixes into their one spelling.
pub(crate) fn service(mut service: Service) -> Result<Service> {
    if service.id.is_empty() {
        return Err(Error::invalid("id", "is empty"));
    }
    let mut seen = BTreeSet::new();
    for (index, port) in service.ports.iter_mut().enumerate() {
        let field = |name: &str| format!("ports[{index}].{name}");
        one(port, &field)?;
        let stream = port.protocol != Protocol::Udp;
        let prefix = (port.protocol == Protocol::Http).then(|| port.path_prefix.clone());
        // A tcp port beside an http port of the same number, or the same twice.
        let clash = seen.iter().any(|(number, is_stream, other): &(u16, bool, Option<String>)| {
            *number == port.public
                && *is_stream == stream
                && (other.is_none() || prefix.is_none() || *other == prefix)
        });
        if clash {
            return Err(Error::invalid(field("public"), format!("{} is there twice", port.public)));
        }
        seen.insert((port.public, stream, prefix));
    }
    Ok(service)
}

fn one(port: &mut Port, field: &dyn Fn(&str) -> String) -> Result<()> {
    if port.public == 0 {
        return Err(Error::invalid(field("public"), "is 0"));
    }
    if port.tls && port.protocol == Protocol::Udp {
        return Err(Error::invalid(field("tls"), "udp cannot be encrypted here"));
    }
    if let Some(target) =
        port.targets.iter().find(|target| target.port() == 0 || target.ip().is_unspecified())
    {
        return Err(Error::invalid(field("targets"), format!("{target} leads nowhere")));
    }
    let mut seen = BTreeSet::new();
    port.targets.retain(|target| seen.insert(*target));
    if port.protocol != Protocol::Http {
        if !port.path_prefix.is_empty() {
            return Err(Error::invalid(field("path_prefix"), "is for http ports"));
        }
        if port.health_path.is_some() {
            return Err(Error::invalid(field("health_path"), "is for http ports"));
        }
        return Ok(());
    }
    port.path_prefix = port.path_prefix.trim_matches('/').to_owned();
    if !port.path_prefix.is_empty() && !port.path_prefix.split('/').all(is_segment) {
        let reason = format!("{:?} is not a path prefix", port.path_prefix);
        return Err(Error::invalid(field("path_prefix"), reason));
    }
    match &port.health_path {
        Some(path)
            if !path.starts_with('/') || path.parse::<http::uri::PathAndQuery>().is_err() =>
        {
            Err(Error::invalid(field("health_path"), format!("{path:?} is not a path")))
        }
        _ => Ok(()),
    }
}

/// Returns whether only one spelling of a segment can come in. Escapes
/// are not undone before a path is looked at.
fn is_segment(segment: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
    !matches!(segment, "" | "." | "..") && segment.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn port(protocol: Protocol, public: u16) -> Port {
        Port { protocol, public, targets: vec!["127.0.0.1:80".parse().unwrap()], ..Port::default() }
    }

    fn prefixed(public: u16, prefix: &str) -> Port {
        Port { path_prefix: prefix.into(), ..port(Protocol::Http, public) }
    }

    fn refused(ports: Vec<Port>) -> String {
        service(Service { id: "one".into(), ports }).unwrap_err().to_string()
    }

    #[test]
    fn wrong_services_name_the_field() {
        let nowhere =
            Port { targets: vec!["0.0.0.0:1".parse().unwrap()], ..port(Protocol::Tcp, 1) };
        let cases = [
            (vec![port(Protocol::Tcp, 0)], "ports[0].public: is 0"),
            (vec![port(Protocol::Tcp, 1), port(Protocol::Tcp, 1)], "ports[1].public"),
            (vec![port(Protocol::Tcp, 1), prefixed(1, "a")], "ports[1].public"),
            (vec![prefixed(1, "a"), prefixed(1, "/a/")], "ports[1].public"),
            (vec![Port { tls: true, ..port(Protocol::Udp, 1) }], "ports[0].tls"),
            (
                vec![Port { path_prefix: "a".into(), ..port(Protocol::Tcp, 1) }],
                "ports[0].path_prefix",
            ),
            (vec![Port { health_path: Some("/".into()), ..port(Protocol::Tcp, 1) }], "health_path"),
            (vec![Port { health_path: Some("x".into()), ..prefixed(1, "") }], "health_path"),
            (vec![nowhere], "ports[0].targets: 0.0.0.0:1 leads nowhere"),
        ];
        for (ports, expected) in cases {
            let text = refused(ports);
            assert!(text.contains(expected), "{text} does not name {expected}");
        }
        for prefix in ["a//b", "a/../b", ".", "a b", "a%20", "a?b", "a#b", "ä"] {
            assert!(refused(vec![prefixed(1, prefix)]).contains("path_prefix"), "{prefix}");
        }
        assert!(service(Service::default()).unwrap_err().to_string().contains("id: is empty"));
    }

    #[test]
    fn protocols_share_numbers_where_the_kernel_lets_them() {
        let ports = vec![
            port(Protocol::Tcp, 1),
            port(Protocol::Udp, 1),
            prefixed(2, "/a/b/"),
            prefixed(2, ""),
        ];
        let checked = service(Service { id: "one".into(), ports }).unwrap();
        assert_eq!(checked.ports[2].path_prefix, "a/b");
    }
}
