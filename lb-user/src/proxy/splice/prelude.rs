//! What a client has sent before it has a backend, and what the backend gets for it.

/// Bytes of a client; `Vec::new()` for one that has not sent anything yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prelude {
    /// All that was read of it.
    pub(crate) bytes: Vec<u8>,
    /// How many of these, in front, were for us: the header of a proxy.
    pub(crate) for_us: usize,
    /// What the backend gets first, from us.
    pub(crate) preface: Vec<u8>,
}

impl Prelude {
    /// How many bytes the backend gets.
    pub(crate) fn sent_on(&self) -> usize {
        self.preface.len() + self.bytes.len().saturating_sub(self.for_us)
    }

    /// How much further a byte of the client is in the backend's stream than in its own; it wraps.
    pub(super) fn shift(&self) -> Option<u32> {
        let preface = u32::try_from(self.preface.len()).ok()?;
        let for_us = u32::try_from(self.for_us).ok()?;
        Some(preface.wrapping_sub(for_us))
    }

    /// What the backend gets.
    pub(crate) fn into_sent_on(self) -> Vec<u8> {
        let Self {
            mut bytes,
            for_us,
            mut preface,
        } = self;
        let for_us = for_us.min(bytes.len());
        match preface.is_empty() {
            true => {
                bytes.drain(..for_us);
                bytes
            }
            false => {
                preface.extend(bytes.drain(for_us..));
                preface
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_gets_the_preface_and_what_is_for_it() {
        let said = |bytes: &str, for_us, preface: &str| Prelude {
            bytes: bytes.into(),
            for_us,
            preface: preface.into(),
        };
        for (said, sent_on, shift) in [
            (said("hello", 0, ""), "hello", 0),
            (said("hello", 0, "from x "), "from x hello", 7),
            (said("as y hello", 5, ""), "hello", -5),
            (said("as y hello", 5, "from y: "), "from y: hello", 3),
            (said("", 0, "from x"), "from x", 6),
        ] {
            assert_eq!(said.sent_on(), sent_on.len());
            assert_eq!(said.shift().map(u32::cast_signed), Some(shift));
            assert_eq!(said.into_sent_on(), sent_on.as_bytes());
        }
    }
}
