#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

const LIMIT: usize = 64 * 1024;

/// A block as the standard prints it, its fields, and the size of the table
/// after it.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], usize);

/// Reads blocks one after the other and compares.
fn read(decoder: &mut Decoder, blocks: &[Case<'_>]) {
    for (block, expected, size) in blocks {
        let block = hex::decode(block.replace(char::is_whitespace, "")).unwrap();
        let fields = decoder.decode(&block, LIMIT).unwrap();
        let fields: Vec<_> = fields
            .iter()
            .map(|field| {
                let text = |bytes| std::str::from_utf8(bytes).unwrap();
                (text(&field.name), text(&field.value))
            })
            .collect();
        assert_eq!(fields, *expected);
        assert_eq!(decoder.table.size(), *size, "{fields:?}");
    }
}

#[test]
fn representations() {
    let learnt = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    read(&mut Decoder::new(), &[(learnt, &[("custom-key", "custom-header")], 55)]);
    let path = "040c 2f73 616d 706c 652f 7061 7468";
    read(&mut Decoder::new(), &[(path, &[(":path", "/sample/path")], 0)]);
    let never = "1008 7061 7373 776f 7264 0673 6563 7265 74";
    read(&mut Decoder::new(), &[(never, &[("password", "secret")], 0)]);
    read(&mut Decoder::new(), &[("82", &[(":method", "GET")], 0)]);
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

#[test]
fn requests() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let huffman = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, huffman] {
        let sizes = [57, 110, 164];
        let cases: Vec<_> = (0..3).map(|nth| (blocks[nth], REQUESTS[nth], sizes[nth])).collect();
        read(&mut Decoder::new(), &cases);
    }
}

const LOCATION: (&str, &str) = ("location", "https://www.example.com");
const PRIVATE: (&str, &str) = ("cache-control", "private");
const DATE: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");

const RESPONSES: [&[(&str, &str)]; 3] = [
    &[(":status", "302"), PRIVATE, DATE, LOCATION],
    &[(":status", "307"), PRIVATE, DATE, LOCATION],
    &[
        (":status", "200"),
        PRIVATE,
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        LOCATION,
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
];

/// The standard's table has room for 256 bytes here: the first block says so.
#[test]
fn responses_with_a_small_table() {
    let plain = [
        "3fe1 01 4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
         2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65
         2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0
         5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851
         5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let huffman = [
        "3fe1 01 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
         2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad
         94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160
         65c0 03ed 4ee5 b106 3d50 07",
    ];
    for blocks in [plain, huffman] {
        let sizes = [222, 222, 215];
        let cases: Vec<_> = (0..3).map(|nth| (blocks[nth], RESPONSES[nth], sizes[nth])).collect();
        read(&mut Decoder::new(), &cases);
    }
}

#[test]
fn unreadable_headers_are_reported() {
    for (block, expected) in [
        ("80", Error::Index),
        ("be", Error::Index),
        ("7f00 00", Error::Index),
        ("ffff ffff ffff", Error::Integer),
        ("ff", Error::Truncated),
        ("41", Error::Truncated),
        ("4105 61", Error::Truncated),
        ("0001 61", Error::Truncated),
        ("4181 00", Error::Huffman),
        ("3fe2 1f", Error::Resize),
        ("8220", Error::Resize),
    ] {
        let bytes = hex::decode(block.replace(' ', "")).unwrap();
        let outcome = Decoder::new().decode(&bytes, LIMIT);
        assert_eq!(outcome.unwrap_err(), expected, "{block}");
    }
    // The whole of the default room may be asked for.
    Decoder::new().decode(&hex::decode("3fe11f82").unwrap(), LIMIT).unwrap();
}

#[test]
fn few_bytes_that_stand_for_many_fields_are_refused() {
    let mut decoder = Decoder::new();
    let mut block = BytesMut::from([0x40, 1, b'x'].as_slice());
    put_string(&[b'y'; 3000], &mut block);
    decoder.decode(&block, LIMIT).unwrap();
    assert_eq!(decoder.decode(&[0xbe; 20], LIMIT).unwrap().len(), 20);
    assert_eq!(decoder.decode(&[0xbe; 40], LIMIT).unwrap_err(), Error::TooLong(LIMIT));
}

#[test]
fn a_field_larger_than_the_table_empties_it() {
    let mut decoder = Decoder::new();
    decoder.decode(&[0x40, 1, b'x', 1, b'y'], LIMIT).unwrap();
    let mut block = BytesMut::from([0x40, 1, b'x'].as_slice());
    put_string(&[b'y'; 5000], &mut block);
    decoder.decode(&block, LIMIT).unwrap();
    assert_eq!(decoder.table.size(), 0);
    assert_eq!(decoder.decode(&[0xbe], LIMIT).unwrap_err(), Error::Index);
}

proptest! {
    #[test]
    fn garbage_never_panics(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..8)) {
        let mut decoder = Decoder::new();
        for block in blocks {
            let _ = decoder.decode(&block, LIMIT);
            prop_assert!(decoder.table.size() <= MAX_SIZE);
        }
    }

    #[test]
    fn what_is_written_reads_back_and_is_not_learnt(
        name in prop::collection::vec(any::<u8>(), 1..300),
        value in prop::collection::vec(any::<u8>(), 0..20_000),
    ) {
        let mut block = BytesMut::new();
        put_literal(&name, &value, &mut block);
        let mut decoder = Decoder::new();
        let fields = decoder.decode(&block, LIMIT).unwrap();
        let expected = Field { name: name.into(), value: value.into() };
        prop_assert!(block.len() <= expected.size());
        prop_assert_eq!(fields, [expected]);
        prop_assert_eq!(decoder.table.size(), 0);
    }
}
