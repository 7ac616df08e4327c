//! Which flavor of the infrastructure carries a flavor of ours.

use selvage_api::edgeproto::{Flavor, FlavorInfo};

use super::{Error, Result};

/// The name of the smallest flavor offered that has all that is wanted.
/// Processors count most, then memory, then disk.
pub(crate) fn closest(wanted: &Flavor, offered: &[FlavorInfo]) -> Result<String> {
    let enough = |offer: &&FlavorInfo| {
        offer.vcpus >= wanted.vcpus && offer.ram >= wanted.ram && offer.disk >= wanted.disk
    };
    let smallest = offered
        .iter()
        .filter(enough)
        .min_by_key(|offer| (offer.vcpus, offer.ram, offer.disk, &offer.name));
    smallest.map(|offer| offer.name.clone()).ok_or_else(|| {
        let name = wanted.key.as_ref().map_or("", |key| key.name.as_str());
        Error::exhausted(format!(
            "no suitable platform flavor found for {name}, please try a smaller flavor"
        ))
    })
}

#[cfg(test)]
mod tests {
    use selvage_api::{Code, edgeproto::FlavorKey};

    use super::*;

    fn flavor(name: &str, ram: u64, vcpus: u64, disk: u64) -> Flavor {
        let key = Some(FlavorKey { name: name.into() });
        Flavor { fields: Vec::new(), key, ram, vcpus, disk }
    }

    /// Name, processors, memory, disk.
    type Offer = (&'static str, u64, u64, u64);

    fn offer((name, vcpus, ram, disk): &Offer) -> FlavorInfo {
        FlavorInfo { name: (*name).into(), vcpus: *vcpus, ram: *ram, disk: *disk }
    }

    #[test]
    fn the_golden_cases_match() {
        let none = "";
        let cases: [(&[Offer], [&str; 4]); 4] = [
            (
                &[
                    ("tiny1", 1, 512, 10),
                    ("tiny2", 1, 1024, 10),
                    ("small", 2, 1024, 20),
                    ("medium", 4, 4096, 40),
                ],
                ["tiny2", "medium", "medium", none],
            ),
            (&[("small1", 2, 2048, 10), ("small2", 2, 1024, 20)], ["small2", "small1", none, none]),
            (
                &[("medium1", 4, 8192, 80), ("medium2", 4, 4096, 40), ("medium3", 4, 2048, 20)],
                ["medium3", "medium3", "medium2", none],
            ),
            (&[("large", 8, 101_024, 100), ("medium", 4, 1, 1)], ["large", "large", "large", none]),
        ];
        let wanted = [
            flavor("tiny", 1024, 1, 1),
            flavor("small", 2048, 2, 2),
            flavor("medium", 4096, 4, 4),
            flavor("large", 8192, 10, 40),
        ];
        for (number, (offers, expected)) in cases.iter().enumerate() {
            let offers: Vec<_> = offers.iter().map(offer).collect();
            for (wanted, expected) in wanted.iter().zip(expected) {
                let found = closest(wanted, &offers).unwrap_or_default();
                assert_eq!(&found, expected, "cloudlet{number} {wanted:?}");
            }
        }
    }

    #[test]
    fn no_large_enough_flavor_has_the_error_text_of_the_original() {
        let refused = closest(&flavor("x1.large", 1, 1, 1), &[]).map_err(|error| {
            assert_eq!(error.code(), Code::ResourceExhausted);
            error.to_string()
        });
        assert_eq!(
            refused,
            Err("no suitable platform flavor found for x1.large, please try a smaller flavor"
                .into())
        );
    }
}
