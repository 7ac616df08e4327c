//! Verification of a device's location: by the distance to what its carrier
//! runs, or by asking an API of the carrier.

use std::time::Duration;

use reqwest::StatusCode;
use selvage_api::distributed_match_engine::{
    VerifyLocationReply, VerifyLocationRequest, verify_location_reply::GpsLocationStatus as Status,
};
use selvage_kit::identity::Secret;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::{
    cookie::Session,
    engine::{Engine, LocationApi, required},
    error::{Error, Result},
    position::Position,
};

/// Levels of accuracy in km.
const ACCURACIES: [f64; 3] = [2.0, 10.0, 100.0];
/// Value for an unknown accuracy.
const UNKNOWN: f64 = -1.0;
/// Maximum size of an answer of a location API.
const MAX_ANSWER: usize = 64 * 1024;

impl Engine {
    /// Checks where a device says it is. While an API is asked nothing waits
    /// but the device.
    pub async fn verify_location(
        &self,
        session: &Session,
        request: &VerifyLocationRequest,
    ) -> Result<VerifyLocationReply> {
        let here = required(request.gps_location.as_ref(), "Missing GPS location")?;
        let name = &session.app;
        let app = self.app(name).ok_or_else(|| {
            let (developer, app, version) = (&name.developer, &name.name, &name.version);
            Error::NotFound(format!("app not found: {developer} {app} {version}"))
        })?;
        let (status, accuracy) = match &self.location {
            Some(_) if request.verify_loc_token.is_empty() => {
                return Err(Error::Invalid("verifyloc token required"));
            }
            Some(api) => api.ask(here.latitude, here.longitude, &request.verify_loc_token).await,
            None => {
                let carrier = app.carrier(&request.carrier_name);
                let nearest = carrier.and_then(|carrier| carrier.nearest(&Position::of(&here)));
                let (_, distance) = nearest.ok_or_else(|| {
                    Error::NotFound(format!("carrier not found for app: {}", name.name))
                })?;
                by_distance(distance)
            }
        };
        Ok(VerifyLocationReply {
            gps_location_status: status.into(),
            gps_location_accuracy_km: accuracy,
            ..VerifyLocationReply::default()
        })
    }
}

fn by_distance(distance: f64) -> (Status, f64) {
    match ACCURACIES.into_iter().find(|accuracy| distance < *accuracy) {
        Some(accuracy) => (Status::LocVerified, accuracy),
        None => (Status::LocMismatchSameCountry, UNKNOWN),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Query<'a> {
    latitude: f64,
    longitude: f64,
    token: &'a str,
    service_url: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    matching_degree: Degree,
    #[serde(default)]
    message: String,
}

/// Written as text, though some write the number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Degree {
    Text(String),
    Number(i64),
}

impl Degree {
    fn number(&self) -> Option<i64> {
        match self {
            Self::Text(text) => text.trim().parse().ok(),
            Self::Number(number) => Some(*number),
        }
    }
}

/// Asks a location API.
pub(crate) struct LocationClient {
    http: reqwest::Client,
    url: Url,
    user: String,
    password: Secret,
    timeout: Duration,
    /// Address that the token server sends devices on to; the API wants to
    /// know.
    service_url: Option<String>,
}

impl LocationClient {
    pub(crate) fn new(api: &LocationApi, token_server: &str) -> Result<Self> {
        let url = Url::parse(&api.url)
            .map_err(|error| Error::LocationApi(format!("{:?}: {error}", api.url)))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Error::LocationApi(format!("{:?} is not a web address", api.url)));
        }
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(api.timeout)
            .build()
            .map_err(|error| Error::LocationApi(error.to_string()))?;
        Ok(Self {
            http,
            url,
            user: api.user.clone(),
            password: api.password.clone(),
            timeout: api.timeout,
            service_url: follow_url(token_server),
        })
    }

    async fn ask(&self, latitude: f64, longitude: f64, token: &str) -> (Status, f64) {
        let Some(service_url) = &self.service_url else {
            tracing::warn!("the token server's address has no followURL: locations not checked");
            return (Status::LocErrorOther, UNKNOWN);
        };
        let query = Query { latitude, longitude, token, service_url };
        match tokio::time::timeout(self.timeout, self.send(&query)).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => {
                tracing::warn!(error = %error.without_url(), "location API");
                (Status::LocErrorOther, UNKNOWN)
            }
            Err(_) => {
                tracing::warn!(timeout = ?self.timeout, "location API did not answer in time");
                (Status::LocErrorOther, UNKNOWN)
            }
        }
    }

    async fn send(&self, query: &Query<'_>) -> reqwest::Result<(Status, f64)> {
        let mut request = self.http.post(self.url.clone()).json(query);
        if !self.user.is_empty() {
            request = request.basic_auth(&self.user, Some(self.password.expose()));
        }
        let mut answer = request.send().await?;
        if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Ok((Status::LocErrorUnauthorized, UNKNOWN));
        }
        if !answer.status().is_success() {
            tracing::warn!(status = %answer.status(), "location API");
            return Ok((Status::LocErrorOther, UNKNOWN));
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Ok((Status::LocErrorOther, UNKNOWN));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(read(&body))
    }
}

fn follow_url(token_server: &str) -> Option<String> {
    let url = Url::parse(token_server).ok()?;
    let found = url.query_pairs().find(|(name, _)| name == "followURL");
    found.map(|(_, value)| value.into_owned()).filter(|value| !value.is_empty())
}

fn read(body: &[u8]) -> (Status, f64) {
    let Ok(answer) = serde_json::from_slice::<Answer>(body) else {
        return (Status::LocErrorOther, UNKNOWN);
    };
    let Some(degree) = answer.matching_degree.number() else {
        return (Status::LocErrorOther, UNKNOWN);
    };
    match degree {
        0 => (Status::LocUnknown, UNKNOWN),
        1 => (Status::LocVerified, ACCURACIES[0]),
        2 => (Status::LocVerified, ACCURACIES[1]),
        3 => (Status::LocVerified, ACCURACIES[2]),
        4 => (Status::LocMismatchSameCountry, UNKNOWN),
        5 => (Status::LocMismatchOtherCountry, UNKNOWN),
        6 => (Status::LocRoamingCountryMatch, UNKNOWN),
        7 => (Status::LocRoamingCountryMismatch, UNKNOWN),
        negative if negative < 0 && answer.message.contains("invalidToken") => {
            (Status::LocErrorUnauthorized, UNKNOWN)
        }
        _ => (Status::LocErrorOther, UNKNOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_become_accuracies() {
        for (distance, expected) in [
            (0.0, (Status::LocVerified, 2.0)),
            (1.99, (Status::LocVerified, 2.0)),
            (2.0, (Status::LocVerified, 10.0)),
            (10.0, (Status::LocVerified, 100.0)),
            (99.9, (Status::LocVerified, 100.0)),
            (100.0, (Status::LocMismatchSameCountry, -1.0)),
        ] {
            assert_eq!(by_distance(distance), expected, "{distance}");
        }
    }

    #[test]
    fn answers_of_the_api_are_read_as_they_are_written() {
        let degree = |text: &str| {
            read(format!("{{\"matchingDegree\":{text},\"message\":\"x\"}}").as_bytes())
        };
        let verified = |km| (Status::LocVerified, km);
        let none = |status| (status, -1.0);
        for (text, expected) in [
            ("\"0\"", none(Status::LocUnknown)),
            ("\"1\"", verified(2.0)),
            ("2", verified(10.0)),
            ("\"3\"", verified(100.0)),
            ("\"4\"", none(Status::LocMismatchSameCountry)),
            ("\"5\"", none(Status::LocMismatchOtherCountry)),
            ("\"6\"", none(Status::LocRoamingCountryMatch)),
            ("\"7\"", none(Status::LocRoamingCountryMismatch)),
            ("\"8\"", none(Status::LocErrorOther)),
            ("\"-1\"", none(Status::LocErrorOther)),
            ("\"near\"", none(Status::LocErrorOther)),
        ] {
            assert_eq!(degree(text), expected, "{text}");
        }
        let refused = br#"{"matchingDegree":"-1","message":"invalidToken"}"#;
        assert_eq!(read(refused), none(Status::LocErrorUnauthorized));
        assert_eq!(read(b"<html>"), none(Status::LocErrorOther));
    }

    #[test]
    fn the_service_is_where_the_token_server_leads() {
        let found = follow_url("http://t.example/its?followURL=https%3A%2F%2Fdme.example%2Fverloc");
        assert_eq!(found.as_deref(), Some("https://dme.example/verloc"));
        assert_eq!(follow_url("http://t.example/its"), None);
        assert_eq!(follow_url(""), None);
    }
}
