//! Volumes that an App asks for in its annotations, as far as the controller
//! counts them: `volume.NAME=SIZE:/PATH[:CLASS]`, with the size in GiB.

use selvage_api::edgeproto::App;

use super::{Error, Result, deployment};

const ANNOTATION: &str = "volume.";
/// Volumes of one instance.
const MOST: usize = 16;
/// Largest volume in GiB: 1 PiB.
const LARGEST: u64 = 1 << 20;

/// Returns the disk of all volumes that each instance of an App has, in GB.
pub(crate) fn total_gb(app: &App) -> Result<u64> {
    if app.deployment != deployment::DOCKER {
        return Ok(0);
    }
    let annotations = app.annotations.split(',').map(str::trim);
    let volumes: Vec<_> = annotations.filter(|text| text.starts_with(ANNOTATION)).collect();
    if volumes.len() > MOST {
        let text =
            format!("annotations has {} volumes, at most {MOST} are possible", volumes.len());
        return Err(Error::invalid(text));
    }
    volumes.into_iter().map(size_gb).sum()
}

fn size_gb(annotation: &str) -> Result<u64> {
    let wrong = || {
        let example = "volume.data=2:/var/lib/data, with a size from 1 to 1048576 GiB";
        Error::invalid(format!("annotations: {annotation:?} is not like {example}"))
    };
    let (_, value) = annotation.split_once('=').ok_or_else(wrong)?;
    let (size, path) = value.split_once(':').ok_or_else(wrong)?;
    let size = size.trim_end_matches("Gi").trim_end_matches('G').parse().map_err(|_| wrong())?;
    if !(1..=LARGEST).contains(&size) || !path.starts_with('/') {
        return Err(wrong());
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn total(deployment: &str, annotations: &str) -> Result<u64> {
        let (deployment, annotations) = (deployment.into(), annotations.into());
        total_gb(&App { deployment, annotations, ..App::default() })
    }

    #[test]
    fn sizes_add_up_where_volumes_are_made() {
        let three = "a=b, volume.data=2:/var/lib/data,volume.logs=1Gi:/var/log:fast,c";
        assert_eq!(total(deployment::DOCKER, three).unwrap(), 3);
        assert_eq!(total(deployment::DOCKER, "").unwrap(), 0);
        assert_eq!(total(deployment::KUBERNETES, three).unwrap(), 0);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for wrong in [
            "volume.a",
            "volume.a=1",
            "volume.a=0:/a",
            "volume.a=-1:/a",
            "volume.a=18446744073709551615:/a",
            "volume.a=1:a",
            "volume.a=1T:/a",
        ] {
            let refused = total(deployment::DOCKER, wrong).unwrap_err().to_string();
            assert!(refused.starts_with("annotations: "), "{wrong}: {refused}");
        }
        let many = vec!["volume.a=1:/a"; 17].join(",");
        assert!(total(deployment::DOCKER, &many).is_err());
    }
}
