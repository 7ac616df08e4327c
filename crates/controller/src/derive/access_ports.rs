//! The text in which an App tells its ports: `tcp:80,udp:10000-10010,http:443`.

use std::{collections::BTreeSet, fmt};

use selvage_api::distributed_match_engine::LProto;

use super::{Error, Result, deployment};

/// Most ports an App may have, ranges counted port by port.
const MAX_PORTS: usize = 1000;

/// Port at which agents reach load balancers.
const SSH_PORT: u16 = 22;

/// One item of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortSpec {
    pub(crate) proto: LProto,
    pub(crate) first: u16,
    /// The same as `first` unless it is a range.
    pub(crate) last: u16,
    /// The load balancer ends TLS: option `tls`.
    pub(crate) tls: bool,
    /// Not reachable from outside: option `intvis`.
    pub(crate) internal_only: bool,
    /// Largest datagram: option `maxpktsize=`.
    pub(crate) max_packet: Option<u16>,
}

impl PortSpec {
    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        self.first..=self.last
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", proto_name(self.proto), self.first)?;
        if self.last != self.first {
            write!(f, "-{}", self.last)?;
        }
        if self.tls {
            f.write_str(":tls")?;
        }
        if self.internal_only {
            f.write_str(":intvis")?;
        }
        match self.max_packet {
            Some(size) => write!(f, ":maxpktsize={size}"),
            None => Ok(()),
        }
    }
}

pub(crate) fn proto_name(proto: LProto) -> &'static str {
    match proto {
        LProto::Tcp => "tcp",
        LProto::Udp => "udp",
        LProto::Http => "http",
        LProto::Unknown => "unknown",
    }
}

/// Reads the list; the empty text is the empty list.
pub(crate) fn parse(text: &str) -> Result<Vec<PortSpec>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let ports = text.split(',').map(parse_item).collect::<Result<Vec<_>>>()?;
    check_distinct(&ports)?;
    Ok(ports)
}

/// The text that [`parse`] reads, in one spelling.
pub(crate) fn render(ports: &[PortSpec]) -> String {
    ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Refuses ports that the platform needs itself. Virtual machines have an
/// address of their own and may use all.
pub(crate) fn check_reserved(ports: &[PortSpec], deployment: &str) -> Result<()> {
    let taken =
        |port: &PortSpec| port.proto != LProto::Udp && (port.first..=port.last).contains(&SSH_PORT);
    match ports.iter().find(|port| taken(port)) {
        Some(port) if deployment != deployment::VM => Err(Error::invalid(format!(
            "Invalid Access Ports: {port}, port {SSH_PORT} is reserved for SSH to load balancers"
        ))),
        _ => Ok(()),
    }
}

fn parse_item(item: &str) -> Result<PortSpec> {
    let mut parts = item.split(':');
    let proto = parts.next().unwrap_or_default();
    let format = |detail: String| {
        Error::invalid(format!(
            "Invalid Access Ports format, expected proto:port but was {proto}{detail}"
        ))
    };
    let numbers = parts.next().ok_or_else(|| format(String::new()))?;
    let known = parse_proto(proto)?;
    let (first, last) = parse_range(numbers)?;
    let mut spec =
        PortSpec { proto: known, first, last, tls: false, internal_only: false, max_packet: None };
    for option in parts {
        apply_option(&mut spec, option)
            .map_err(|problem| format(format!(", option {option} {problem}")))?;
    }
    Ok(spec)
}

fn parse_proto(text: &str) -> Result<LProto> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(LProto::Tcp),
        "udp" => Ok(LProto::Udp),
        "http" => Ok(LProto::Http),
        _ => Err(Error::invalid(format!("{text} is not a supported Protocol"))),
    }
}

fn apply_option(spec: &mut PortSpec, option: &str) -> Result<(), &'static str> {
    let repeated = "is there twice";
    let name = option.to_ascii_lowercase();
    match name.as_str() {
        "tls" if spec.proto == LProto::Udp => return Err("is not for udp"),
        "tls" if spec.tls => return Err(repeated),
        "tls" => spec.tls = true,
        "intvis" if spec.internal_only => return Err(repeated),
        "intvis" => spec.internal_only = true,
        _ => {
            let size = name.strip_prefix("maxpktsize=").ok_or("is unknown")?;
            if spec.proto != LProto::Udp {
                return Err("is only for udp");
            }
            if spec.max_packet.is_some() {
                return Err(repeated);
            }
            let size = size.parse().ok().filter(|size| (1500..=50_000).contains(size));
            spec.max_packet = Some(size.ok_or("is not a size between 1500 and 50000")?);
        }
    }
    Ok(())
}

fn parse_range(text: &str) -> Result<(u16, u16)> {
    // A sign in front belongs to the number.
    let dash = text.char_indices().skip(1).find(|(_, letter)| *letter == '-');
    let Some((at, _)) = dash else {
        let port = parse_port(text)?;
        return Ok((port, port));
    };
    let (first, last) = (parse_port(&text[..at])?, parse_port(&text[at + 1..])?);
    if last < first {
        return Err(Error::invalid(format!("Port {text} out of range")));
    }
    Ok((first, last))
}

fn parse_port(text: &str) -> Result<u16> {
    let failed = |reason: &str| {
        Error::invalid(format!(
            "Failed to convert port {text} to integer: strconv.ParseInt: parsing {text:?}: {reason}"
        ))
    };
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(failed("invalid syntax"));
    }
    let number: i64 = text.parse().map_err(|_| failed("value out of range"))?;
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Error::invalid(format!("Port {text} out of range"))),
    }
}

/// http is tcp on the wire, so both cannot have the same port.
fn check_distinct(ports: &[PortSpec]) -> Result<()> {
    let count: usize = ports.iter().map(|port| port.ports().count()).sum();
    if count > MAX_PORTS {
        return Err(Error::invalid(format!(
            "Too many Access Ports: {count}, at most {MAX_PORTS} are possible"
        )));
    }
    let mut seen = BTreeSet::new();
    for spec in ports {
        for port in spec.ports() {
            if !seen.insert((spec.proto == LProto::Udp, port)) {
                return Err(Error::invalid(format!(
                    "Duplicate Access Port {}:{port}",
                    proto_name(spec.proto)
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn refusal(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn ports_are_read_and_written_in_one_spelling() {
        assert_eq!(parse("").unwrap(), []);
        let spelled = [
            ("tcp:80,http:443,udp:10002", "tcp:80,http:443,udp:10002"),
            ("TCP:+80,Udp:0080", "tcp:80,udp:80"),
            ("tcp:1000-1010,udp:1000-1010", "tcp:1000-1010,udp:1000-1010"),
            ("tcp:5-5", "tcp:5"),
            (
                "tcp:443:TLS:intvis,udp:9:maxpktsize=1600",
                "tcp:443:tls:intvis,udp:9:maxpktsize=1600",
            ),
        ];
        for (text, normal) in spelled {
            assert_eq!(render(&parse(text).unwrap()), normal);
        }
    }

    #[test]
    fn refusals_have_the_texts_of_the_original() {
        let format = "Invalid Access Ports format, expected proto:port but was ";
        assert_eq!(refusal("tcp80"), format!("{format}tcp80"));
        assert_eq!(refusal("tcp:80,"), format!("{format}"));
        assert_eq!(refusal("tcp:80:x"), format!("{format}tcp, option x is unknown"));
        assert_eq!(refusal("udp:80:tls"), format!("{format}udp, option tls is not for udp"));
        assert_eq!(refusal("sctp:80"), "sctp is not a supported Protocol");
        assert_eq!(refusal("sctp:x"), "sctp is not a supported Protocol");
        assert_eq!(refusal(" tcp:80"), " tcp is not a supported Protocol");
        assert_eq!(
            refusal("tcp:eighty"),
            "Failed to convert port eighty to integer: strconv.ParseInt: parsing \"eighty\": \
             invalid syntax"
        );
        assert_eq!(
            refusal("tcp:99999999999999999999"),
            "Failed to convert port 99999999999999999999 to integer: strconv.ParseInt: \
             parsing \"99999999999999999999\": value out of range"
        );
        assert_eq!(refusal("tcp:0"), "Port 0 out of range");
        assert_eq!(refusal("tcp:65536"), "Port 65536 out of range");
        assert_eq!(refusal("tcp:-1"), "Port -1 out of range");
        assert_eq!(refusal("tcp:20-10"), "Port 20-10 out of range");
    }

    #[test]
    fn a_port_is_named_once() {
        assert_eq!(refusal("tcp:80,TCP:080"), "Duplicate Access Port tcp:80");
        assert_eq!(refusal("tcp:80,http:80"), "Duplicate Access Port http:80");
        assert_eq!(refusal("tcp:80-90,tcp:85"), "Duplicate Access Port tcp:85");
        assert_eq!(
            refusal("tcp:1-65535"),
            "Too many Access Ports: 65535, at most 1000 are possible"
        );
        parse("tcp:80,udp:80").unwrap();
    }

    #[test]
    fn the_port_of_ssh_is_for_machines_only() {
        let ports = parse("udp:22,tcp:20-30").unwrap();
        check_reserved(&ports, "vm").unwrap();
        check_reserved(&parse("udp:22,tcp:222").unwrap(), "docker").unwrap();
        assert_eq!(
            check_reserved(&ports, "docker").unwrap_err().to_string(),
            "Invalid Access Ports: tcp:20-30, port 22 is reserved for SSH to load balancers"
        );
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_survives_a_round_trip(
            text in "([tuh][cdt]t?p|.{0,3})(:[-+0-9a-z=]{0,7}){0,3}(,[tu][cd]p:[0-9]{1,5}(-[0-9]{1,5})?){0,4}"
        ) {
            if let Ok(ports) = parse(&text) {
                prop_assert_eq!(parse(&render(&ports)).unwrap(), ports);
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = parse(&text);
        }
    }
}
