//! Stages of a rotation. A stage is a number that counts up; three make a
//! generation. Neighbouring stages understand each other.

/// Stage of the authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stage(pub(crate) u64);

/// Place of a stage within its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// One authority.
    Alone,
    /// The next one is believed and signs nothing yet.
    Introduced,
    /// The next one signs, and the old one is believed still.
    Signing,
}

impl Stage {
    pub(crate) fn phase(self) -> Phase {
        match self.0 % 3 {
            0 => Phase::Alone,
            1 => Phase::Introduced,
            _ => Phase::Signing,
        }
    }

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Numbers of the generations that are believed, the one that signs first.
    pub(crate) fn generations(self) -> Vec<u64> {
        let own = self.0 / 3;
        match self.phase() {
            Phase::Alone => vec![own],
            Phase::Introduced => vec![own, own + 1],
            Phase::Signing => vec![own + 1, own],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_stages_believe_each_others_signer() {
        for number in 0..9 {
            let (stage, next) = (Stage(number), Stage(number).next());
            assert!(next.generations().contains(&stage.generations()[0]), "{stage:?}");
            assert!(
                stage.phase() == Phase::Alone
                    || stage.generations().contains(&next.generations()[0]),
                "{stage:?}"
            );
        }
        assert_eq!(Stage(2).generations(), [1, 0]);
        assert_eq!(Stage(3).generations(), [1]);
    }
}
