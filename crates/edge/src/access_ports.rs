//! The text in which an App tells its ports: `tcp:80,udp:10000-10010,http:443`.

use std::{collections::BTreeSet, fmt};

use selvage_api::distributed_match_engine::LProto;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a text names no ports. The text goes to the caller as it is; where the
/// original has one, it is the original's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    fn invalid(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Most ports an App may have, ranges counted port by port.
const MAX_PORTS: usize = 1000;

/// One item of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSpec {
    /// Protocol: http is tcp that is routed by path.
    pub proto: LProto,
    /// First port, as the App has it inside.
    pub first: u16,
    /// The same as `first` unless it is a range.
    pub last: u16,
    /// The load balancer ends TLS: option `tls`.
    pub tls: bool,
    /// True if the port is not reachable from outside: option `intvis`.
    pub internal_only: bool,
    /// Largest datagram: option `maxpktsize=`.
    pub max_packet: Option<u16>,
}

impl PortSpec {
    /// Its ports, one by one.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        self.first..=self.last
    }

    /// Returns true if it is udp on the wire; http is tcp there.
    pub fn is_udp(&self) -> bool {
        self.proto == LProto::Udp
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

/// Name of a protocol in such a text.
pub fn proto_name(proto: LProto) -> &'static str {
    match proto {
        LProto::Tcp => "tcp",
        LProto::Udp => "udp",
        LProto::Http => "http",
        LProto::Unknown => "unknown",
    }
}

/// Reads the list of a new App: no port is named twice, and there are not too many.
/// The empty text is the empty list.
pub fn parse(text: &str) -> Result<Vec<PortSpec>> {
    let ports = items(text)?;
    check_distinct(&ports)?;
    Ok(ports)
}

/// Reads the list of an App that some controller has accepted.
pub fn items(text: &str) -> Result<Vec<PortSpec>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(parse_item).collect()
}

/// The text that [`parse`] reads, in one spelling.
pub fn render(ports: &[PortSpec]) -> String {
    ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns true if these ports have one, named by its number inside, with TLS.
pub fn asks_for_tls(ports: &[PortSpec], proto: LProto, internal: i32) -> bool {
    let covers = |spec: &&PortSpec| {
        (i32::from(spec.first)..=i32::from(spec.last)).contains(&internal)
            && spec.is_udp() == (proto == LProto::Udp)
    };
    ports.iter().filter(covers).any(|spec| spec.tls)
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
            if !seen.insert((spec.is_udp(), port)) {
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
        assert_eq!(items("tcp:80,http:80").unwrap().len(), 2, "not every controller minds");
    }

    #[test]
    fn tls_is_for_the_ports_that_name_it() {
        let ports = parse("TCP:8080-8082:TLS,tcp:8083,http:80:tls,http:81,udp:8080").unwrap();
        for (proto, number, asked) in [
            (LProto::Tcp, 8080, true),
            (LProto::Tcp, 8082, true),
            (LProto::Tcp, 8083, false),
            (LProto::Http, 80, true),
            // Without a balancer http is plain tcp.
            (LProto::Tcp, 80, true),
            (LProto::Http, 81, false),
            (LProto::Udp, 8080, false),
            (LProto::Tcp, 0, false),
        ] {
            assert_eq!(asks_for_tls(&ports, proto, number), asked, "{proto:?} {number}");
        }
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
