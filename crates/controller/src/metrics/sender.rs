//! Samples that a sender may send: of what it measures itself, and nothing that
//! is larger than that.

use prost::Message;
use selvage_api::edgeproto as wire;
use selvage_kit::identity::{Identity, Kind, Machine};

use selvage_samples::{CLOUDLET_TAG, OPERATOR_TAGS, tagged};

/// Most tags and values of a sample,
const TAGS: usize = 32;
const VALUES: usize = 64;
/// bytes of a name or of the value of a tag,
const TEXT: usize = 512;
/// and bytes of all of it.
const WHOLE: usize = 4096;

/// Prefixes of measurements that crms make, ours and others.
const OF_CRMS: [&str; 4] = ["crm-", "cloudlet-", "cluster-", "appinst-"];
/// And those of match engines.
const OF_ENGINES: [&str; 1] = ["dme-"];
/// The tag by which a match engine names itself.
const ENGINE_TAG: &str = "id";

/// Why a sample is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwanted {
    Misshapen,
    OfOthers,
    OtherKind,
}

impl Unwanted {
    pub(super) const ALL: [Self; 3] = [Self::Misshapen, Self::OfOthers, Self::OtherKind];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Misshapen => "misshapen",
            Self::OfOthers => "of_others",
            Self::OtherKind => "other_kind",
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Misshapen => "without a name, with too many parts, or too large",
            Self::OfOthers => "not about the sender's own",
            Self::OtherKind => "a measurement that such a sender does not make",
        }
    }
}

/// Checks that a sample of this sender is taken.
pub(super) fn check(sample: &wire::Metric, who: &Identity) -> Result<(), Unwanted> {
    if !is_bearable(sample) {
        return Err(Unwanted::Misshapen);
    }
    let (made, own) = match &who.kind {
        Kind::Machine(Machine::Cloudlet { operator, name }) => {
            let own =
                all_are(sample, &OPERATOR_TAGS, operator) && all_are(sample, &[CLOUDLET_TAG], name);
            (OF_CRMS.as_slice(), own)
        }
        Kind::Machine(Machine::Dme { name }) => {
            (OF_ENGINES.as_slice(), all_are(sample, &[ENGINE_TAG], name))
        }
        // Nobody else is let in who may not say everything.
        _ => return Ok(()),
    };
    if !made.iter().any(|start| sample.name.starts_with(start)) {
        return Err(Unwanted::OtherKind);
    }
    if own { Ok(()) } else { Err(Unwanted::OfOthers) }
}

fn is_bearable(sample: &wire::Metric) -> bool {
    let tags = sample.tags.iter().flat_map(|tag| [&tag.name, &tag.val]);
    let mut texts = tags.chain(sample.vals.iter().map(|value| &value.name)).chain([&sample.name]);
    !sample.name.is_empty()
        && sample.tags.len() <= TAGS
        && sample.vals.len() <= VALUES
        && texts.all(|text| text.len() <= TEXT)
        && sample.encoded_len() <= WHOLE
}

/// Returns true if there are tags of these names, and all say the same.
fn all_are(sample: &wire::Metric, names: &[&str], value: &str) -> bool {
    let mut there = tagged(sample, names).peekable();
    there.peek().is_some() && there.all(|said| said == value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn machine(text: &str) -> Identity {
        Identity::machine(Machine::parse(text).unwrap())
    }

    fn sample(name: &str, tags: &[(&str, &str)]) -> wire::Metric {
        let tag = |(name, val): &(&str, &str)| wire::MetricTag {
            name: (*name).into(),
            val: (*val).into(),
        };
        let tags = tags.iter().map(tag).collect();
        wire::Metric { name: name.into(), tags, ..Default::default() }
    }

    const OWN: [(&str, &str); 2] = [("operator", "demo"), ("cloudlet", "shop-7")];

    #[test]
    fn a_crm_speaks_of_its_own_cloudlet_only() {
        let crm = machine("cloudlet/demo/shop-7");
        for name in ["crm-appinst", "appinst-connections", "crm-cluster", "cloudlet-utilization"] {
            assert_eq!(check(&sample(name, &OWN), &crm), Ok(()), "{name}");
            for others in [
                vec![("operator", "demo"), ("cloudlet", "here")],
                vec![("operator", "other"), ("cloudlet", "shop-7")],
                vec![("cloudlet", "shop-7")],
                vec![("operator", "demo")],
                vec![],
                // Who reads only one of them must not read another's.
                vec![OWN[0], OWN[1], ("cloudlet", "here")],
                vec![OWN[0], OWN[1], ("oper", "other")],
            ] {
                let refused = check(&sample(name, &others), &crm);
                assert_eq!(refused, Err(Unwanted::OfOthers), "{name} {others:?}");
            }
        }
        assert_eq!(check(&sample("dme-api", &OWN), &crm), Err(Unwanted::OtherKind));
    }

    #[test]
    fn a_match_engine_counts_its_own_calls_only() {
        let engine = machine("dme/west");
        let own = [("dev", "a"), ("oper", ""), ("cloudlet", ""), ("id", "west")];
        assert_eq!(check(&sample("dme-api", &own), &engine), Ok(()));
        let others = check(&sample("dme-api", &[("id", "east")]), &engine);
        assert_eq!(others, Err(Unwanted::OfOthers));
        let mut tags = OWN.to_vec();
        tags.push(("id", "west"));
        for name in ["crm-appinst", "cloudlet-utilization", "other"] {
            assert_eq!(check(&sample(name, &tags), &engine), Err(Unwanted::OtherKind), "{name}");
        }
    }

    #[test]
    fn controllers_and_those_who_may_everything_are_believed() {
        for who in [machine("controller"), Identity::all_powerful("local", Kind::Local)] {
            assert_eq!(check(&sample("any", &[]), &who), Ok(()));
        }
    }

    #[test]
    fn a_sample_has_a_name_and_a_size() {
        let who = Identity::all_powerful("local", Kind::Local);
        let misshapen = |sample: &wire::Metric| check(sample, &who) == Err(Unwanted::Misshapen);
        assert!(misshapen(&sample("", &OWN)));
        let long = "x".repeat(TEXT + 1);
        assert!(misshapen(&sample(&long, &[])));
        assert!(misshapen(&sample("n", &[("app", &long)])));
        assert!(misshapen(&sample("n", &[(&long, "")])));
        assert!(misshapen(&sample("n", &[("a", "b"); TAGS + 1])));
        let text = "x".repeat(TEXT);
        assert!(misshapen(&sample("n", &[("a", text.as_str()); 8])), "each is short, all are not");
        assert!(!misshapen(&sample("n", &[("a", text.as_str()); 4])));
    }
}
