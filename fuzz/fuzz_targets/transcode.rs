//! Any verb, path, query and body: a message that decodes as the method's
//! request, or an error. Never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

const VERBS: [http::Method; 5] = [
    http::Method::GET,
    http::Method::POST,
    http::Method::PUT,
    http::Method::DELETE,
    http::Method::PATCH,
];

fuzz_target!(|input: (u8, u16, String, Option<String>, Vec<u8>)| {
    let (verb, known, path, query, body) = input;
    let verb = &VERBS[usize::from(verb) % VERBS.len()];
    // Half of the time a path that leads somewhere.
    let methods = selvage_api::methods();
    let method = &methods[usize::from(known / 2) % methods.len()];
    let path = match (known % 2, method.http.first()) {
        (0, Some(binding)) => binding.path.as_str(),
        (0, None) => method.path.as_str(),
        _ => path.as_str(),
    };
    if let Ok((path, message)) =
        selvage_transcode::transcode_request(verb, path, query.as_deref(), &body)
    {
        let method = selvage_api::method(path).expect("leads to a method");
        prost_reflect(method, &message);
    }
});

fn prost_reflect(method: &selvage_api::Method, message: &[u8]) {
    selvage_api::object::Filter::of_encoded(method.input.clone(), message)
        .expect("what was transcoded can be read");
}
