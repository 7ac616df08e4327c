//! Header fields that can be named by number: the fields that every connection
//! knows, and those that this one has learnt (RFC 7541, section 2.3).

use std::collections::VecDeque;

use bytes::Bytes;

/// One line of a header. Values may be secrets: there is no `Debug`.
#[derive(Clone)]
#[cfg_attr(test, derive(Debug, PartialEq))]
pub(super) struct Field {
    pub(super) name: Bytes,
    pub(super) value: Bytes,
}

impl Field {
    /// Size of the field in limits, by the standard.
    pub(super) fn size(&self) -> usize {
        self.name.len() + self.value.len() + 32
    }
}

/// Room for learnt fields as long as nobody has asked for another; our
/// listener does not.
pub(super) const MAX_SIZE: usize = 4096;

pub(super) struct Table {
    /// The newest is first.
    learnt: VecDeque<Field>,
    size: usize,
    room: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { learnt: VecDeque::new(), size: 0, room: MAX_SIZE }
    }

    pub(super) fn get(&self, index: usize) -> Option<Field> {
        let index = index.checked_sub(1)?;
        match KNOWN.get(index) {
            Some((name, value)) => Some(Field {
                name: Bytes::from_static(name.as_bytes()),
                value: Bytes::from_static(value.as_bytes()),
            }),
            None => self.learnt.get(index - KNOWN.len()).cloned(),
        }
    }

    /// A field that is larger than the table empties it and is not kept.
    pub(super) fn learn(&mut self, field: Field) {
        self.size += field.size();
        self.learnt.push_front(field);
        self.forget();
    }

    pub(super) fn resize(&mut self, room: usize) {
        self.room = room;
        self.forget();
    }

    fn forget(&mut self) {
        while self.size > self.room {
            let Some(oldest) = self.learnt.pop_back() else { return };
            self.size -= oldest.size();
        }
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }
}

/// RFC 7541, appendix A.
const KNOWN: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
