//! Conversion of the parts of a request to the message of the inner call,
//! without I/O.

use bytes::Bytes;
use http::Method as Verb;
use prost::Message;
use prost_reflect::DynamicMessage;
use selvage_api::Method;

use crate::{
    Error, query,
    read::{self, Unknown},
    route::{self, Lookup, Matched, Rpc},
};

/// Translates a REST call, or a Connect call in JSON, into the gRPC path and
/// the encoded message of the inner call.
pub fn transcode_request(
    verb: &Verb,
    path: &str,
    query: Option<&str>,
    body: &[u8],
) -> Result<(&'static str, Bytes), Error> {
    if let Some(rpc) = route::rpc(path) {
        let method = connect_method(rpc, verb)?;
        return Ok((&method.path, connect_message(method, Codec::Json, body)?));
    }
    let matched = rest_route(verb, path)?;
    let message = rest_message(&matched, query, body)?;
    Ok((&matched.route.method.path, message))
}

/// Encoding of the messages of a Connect call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Json,
    Proto,
}

pub(crate) const CONNECT_VERBS: &str = "OPTIONS, POST";

/// The method of a Connect call, if it can be called so.
pub(crate) fn connect_method(rpc: Rpc, verb: &Verb) -> Result<&'static Method, Error> {
    let method = match rpc {
        Rpc::Known(method) => method,
        Rpc::NoSuchMethod { service, method } => {
            return Err(Error::NoSuchMethod { service, method });
        }
    };
    if *verb != Verb::POST {
        return Err(Error::Verb { verb: verb.to_string(), allow: CONNECT_VERBS.to_owned() });
    }
    if method.client_streaming {
        return Err(Error::ClientStream { method: method.path.clone() });
    }
    Ok(method)
}

/// The encoded request of a Connect call. Protobuf is decoded too, so that
/// garbage is the caller's error and not ours.
pub(crate) fn connect_message(method: &Method, codec: Codec, body: &[u8]) -> Result<Bytes, Error> {
    match codec {
        Codec::Json => {
            // Clients of this protocol may be newer than we are.
            let message = read::message(&method.input, body, Unknown::Skipped)?;
            Ok(message.encode_to_vec().into())
        }
        Codec::Proto => match DynamicMessage::decode(method.input.clone(), body) {
            Ok(_) => Ok(Bytes::copy_from_slice(body)),
            Err(error) => Err(Error::Proto {
                message: method.input.full_name().to_owned(),
                reason: error.to_string(),
            }),
        },
    }
}

pub(crate) fn rest_route(verb: &Verb, path: &str) -> Result<Matched, Error> {
    match route::lookup(verb, path)? {
        Lookup::Found(matched) => Ok(matched),
        Lookup::OtherVerbs(_, allow) => Err(Error::Verb { verb: verb.to_string(), allow }),
        Lookup::Nowhere => Err(Error::NotFound { path: path.to_owned() }),
    }
}

/// The encoded request of a REST call: body first, then query, then what the
/// path says, which nothing may contradict.
pub(crate) fn rest_message(
    matched: &Matched,
    query: Option<&str>,
    body: &[u8],
) -> Result<Bytes, Error> {
    let route = matched.route;
    let method = route.method;
    if method.client_streaming {
        return Err(Error::ClientStream { method: method.path.clone() });
    }
    // Routes of the originals are as lenient as those were.
    let ours = method.input.package_name().starts_with("selvage.");
    let unknown = if ours { Unknown::Refused } else { Unknown::Skipped };
    let mut taken: Vec<&str> = matched.captures.iter().map(|(name, _)| *name).collect();
    let mut message = match route.binding.body.as_str() {
        "*" => read::message(&method.input, body, unknown)?,
        "" => DynamicMessage::new(method.input.clone()),
        name => {
            let mut message = DynamicMessage::new(method.input.clone());
            if let Some(field) = query::field(&method.input, name) {
                read::field(&mut message, &field, body, unknown)?;
            }
            taken.push(name);
            message
        }
    };
    if route.binding.body != "*" {
        let lenient = route.dialect.lenient_query();
        query::apply(&mut message, query.unwrap_or_default(), &taken, lenient)?;
    }
    for (name, text) in &matched.captures {
        query::apply_capture(&mut message, name, text)?;
    }
    Ok(message.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_api::{HttpBinding, selvage::identity};

    use super::*;
    use crate::{Dialect, route::Route};

    /// No contract has such a route yet; the rules for them hold all the same.
    fn route_with_a_field_as_body() -> &'static Route {
        let method = selvage_api::method("/selvage.identity.IdentityService/AddUser").unwrap();
        let binding = HttpBinding {
            verb: "POST".to_owned(),
            path: "/x/{user.username}".to_owned(),
            body: "user".to_owned(),
            response_body: "user".to_owned(),
        };
        Box::leak(Box::new(Route::new(method, Box::leak(Box::new(binding)))))
    }

    #[test]
    fn a_field_can_be_the_body_and_the_query_the_rest() {
        let captures = vec![("user.username", "ann".to_owned())];
        let matched = Matched { route: route_with_a_field_as_body(), captures };
        let body = br#"{"username":"eve","disabled":true,"grants":[{"role":"viewer"}]}"#;
        let query = Some("password=a%26b&user.source=ignored");
        let bytes = rest_message(&matched, query, body).unwrap();
        let request = identity::AddUserRequest::decode(bytes).unwrap();
        let user = request.user.unwrap();
        assert_eq!((user.username.as_str(), user.disabled, user.grants.len()), ("ann", true, 1));
        assert_eq!((request.password.as_str(), user.source.as_str()), ("a&b", ""));

        let error = rest_message(&matched, None, br#"{"disabled":"yes"}"#).unwrap_err();
        assert!(error.to_string().contains("field user.disabled"), "{error}");
        let error = rest_message(&matched, None, br#"{"grants":[{"roll":"x"}]}"#).unwrap_err();
        let told = "field user.grants[0].roll: is not one of selvage.identity.Grant";
        assert!(error.to_string().contains(told), "{error}");
        let zero = rest_message(&matched, None, b"").unwrap();
        assert_eq!(identity::AddUserRequest::decode(zero).unwrap().user.unwrap().username, "ann");
    }

    #[test]
    fn a_field_can_be_the_reply() {
        let user = identity::User { username: "ann".to_owned(), ..Default::default() };
        let reply = identity::AddUserResponse { user: Some(user), ..Default::default() };
        let output = route_with_a_field_as_body().method.output.clone();
        let message = DynamicMessage::decode(output, reply.encode_to_vec().as_slice()).unwrap();
        let body = Dialect::Selvage.reply(&message, "user").unwrap();
        assert_eq!(body, br#"{"username":"ann"}"#);
    }
}
