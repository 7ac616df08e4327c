//! From claims to a user: who is let in, with which grants.

use selvage_kit::identity::Grant;
use serde_json::Value;

use super::{
    Reason, Refusal,
    id_token::{self, Claims},
    provider::Provider,
};
use crate::names;

/// Claim with the person's address.
const EMAIL: &str = "email";

/// Somebody whom a provider vouches for and whom the settings let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Person {
    pub(crate) username: String,
    pub(crate) subject: String,
    pub(crate) grants: Vec<Grant>,
}

impl Person {
    pub(crate) fn from_claims(provider: &Provider, claims: &Claims) -> Result<Self, Refusal> {
        let refused = |detail: String| Err(Refusal::new(Reason::NotAllowed, detail));
        let settings = &provider.settings;
        let claim = &settings.username_claim;
        let Some(username) = id_token::text(claims, claim).filter(|name| names::is_username(name))
        else {
            return refused(format!("claim {claim:?} holds nothing that can be a username"));
        };
        if (claim == EMAIL || username.contains('@')) && !is_own_address(claims, username) {
            return refused(format!(
                "claim {claim:?} holds an e-mail address that the provider has not verified \
                 (email, email_verified)"
            ));
        }
        let groups = groups(claims, &settings.groups_claim);
        let listed = settings.allowed_users.iter().any(|name| name == username)
            || settings.allowed_groups.iter().any(|name| groups.contains(&name.as_str()));
        let everybody = settings.allowed_users.is_empty() && settings.allowed_groups.is_empty();
        if !listed && !everybody {
            return refused("not on the list of those who are let in".into());
        }
        let mut grants = provider.default_grants.clone();
        for (group, grant) in &provider.group_grants {
            if groups.contains(&group.as_str()) && !grants.contains(grant) {
                grants.push(grant.clone());
            }
        }
        if grants.is_empty() {
            return refused("no grant for any of the user's groups".into());
        }
        let subject = id_token::text(claims, "sub").unwrap_or_default().to_owned();
        Ok(Self { username: username.to_owned(), subject, grants })
    }
}

/// Returns whether the provider says that this address is the person's. In whatever
/// claim it stands, people may have chosen it themselves.
fn is_own_address(claims: &Claims, address: &str) -> bool {
    let own = id_token::text(claims, EMAIL).is_some_and(|own| own.eq_ignore_ascii_case(address));
    own && is_verified(claims)
}

/// Returns whether the provider says that the address is its owner's. Some
/// write the claim as text; one that leaves it out has not said so.
fn is_verified(claims: &Claims) -> bool {
    match claims.get("email_verified") {
        Some(Value::Bool(verified)) => *verified,
        Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
        Some(_) | None => false,
    }
}

/// A claim that is one group or a list of groups. The person's own address is one
/// only if it is verified.
fn groups<'a>(claims: &'a Claims, name: &str) -> Vec<&'a str> {
    let mut found = match claims.get(name) {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let own = id_token::text(claims, EMAIL);
    let counts =
        |group: &str| name != EMAIL && own.is_none_or(|own| !own.eq_ignore_ascii_case(group));
    found.retain(|group| counts(group) || is_own_address(claims, group));
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use selvage_kit::clock::SystemClock;
    use serde_json::json;

    use super::*;
    use crate::options::{GroupGrant, OidcProvider, WrittenGrant};

    fn settings() -> OidcProvider {
        let mut settings = OidcProvider::new("corp", "https://id.example", "us");
        let grant = |group: &str, role: &str, organisation: &str| GroupGrant {
            group: group.into(),
            role: role.into(),
            organisation: organisation.into(),
        };
        settings.group_grants =
            vec![grant("root", "admin", ""), grant("tmus-ops", "operator", "tmus")];
        settings
    }

    fn person(settings: &OidcProvider, claims: Value) -> Result<Person, Refusal> {
        let provider = Provider::new(settings, Arc::new(SystemClock)).unwrap();
        Person::from_claims(&provider, claims.as_object().unwrap())
    }

    #[test]
    fn groups_become_grants() {
        let claims =
            json!({"sub": "1", "preferred_username": "anna", "groups": ["x", "root", "tmus-ops"]});
        let anna = person(&settings(), claims).unwrap();
        let shown: Vec<_> =
            anna.grants.iter().map(|g| (g.role.name(), g.organisation.as_str())).collect();
        assert_eq!(shown, [("admin", ""), ("operator", "tmus")]);
    }

    #[test]
    fn somebody_without_any_grant_is_not_let_in() {
        for groups in [json!(["x"]), json!("y"), json!(null), json!([1, {}])] {
            let claims = json!({"sub": "1", "preferred_username": "anna", "groups": groups});
            let refusal = person(&settings(), claims).unwrap_err();
            assert_eq!(refusal.reason, Reason::NotAllowed);
        }
        let mut generous = settings();
        generous.default_grants =
            vec![WrittenGrant { role: "viewer".into(), organisation: String::new() }];
        assert!(person(&generous, json!({"sub": "1", "preferred_username": "anna"})).is_ok());
    }

    #[test]
    fn the_list_lets_in_users_and_groups_and_nobody_else() {
        let mut strict = settings();
        strict.allowed_users = vec!["anna".into()];
        strict.allowed_groups = vec!["tmus-ops".into()];
        let claims = |name: &str, group: &str| json!({"sub": "1", "preferred_username": name, "groups": [group]});
        assert!(person(&strict, claims("anna", "root")).is_ok());
        assert!(person(&strict, claims("bert", "tmus-ops")).is_ok());
        assert!(person(&strict, claims("bert", "root")).is_err());
    }

    #[test]
    fn odd_usernames_and_unverified_addresses_are_refused() {
        for name in [json!("a b"), json!(""), json!(7), json!(null), json!("../x")] {
            let claims = json!({"sub": "1", "preferred_username": name, "groups": ["root"]});
            assert!(person(&settings(), claims).is_err());
        }
        let mut by_mail = settings();
        by_mail.username_claim = "email".into();
        let claims = |verified: &Value| json!({"sub": "1", "email": "a@b.c", "email_verified": verified, "groups": "root"});
        for yes in [json!(true), json!("true"), json!("True")] {
            assert!(person(&by_mail, claims(&yes)).is_ok(), "{yes}");
        }
        for no in [json!(false), json!("false"), json!("False"), json!(""), json!(0), json!(null)] {
            assert!(person(&by_mail, claims(&no)).is_err(), "{no}");
        }
        let silent = json!({"sub": "1", "email": "a@b.c", "groups": "root"});
        assert!(person(&by_mail, silent).is_err(), "not said is not verified");
    }

    #[test]
    fn an_address_in_another_claim_must_be_verified_too() {
        for claim in ["preferred_username", "upn", "mail"] {
            let mut settings = settings();
            settings.username_claim = claim.into();
            let claims = |email: Value, verified: Value| {
                let mut claims = json!({"sub": "1", "groups": "root"});
                claims[claim] = json!("boss@corp.example");
                claims["email"] = email;
                claims["email_verified"] = verified;
                claims
            };
            let good = claims(json!("Boss@corp.example"), json!(true));
            assert!(person(&settings, good).is_ok(), "{claim}");
            for (email, verified) in [
                (json!("boss@corp.example"), json!(false)),
                (json!("boss@corp.example"), json!(null)),
                // Another address is verified, not this one.
                (json!("mallory@evil.example"), json!(true)),
                (json!(null), json!(true)),
            ] {
                let refusal = person(&settings, claims(email.clone(), verified)).unwrap_err();
                assert_eq!(refusal.reason, Reason::NotAllowed, "{claim} {email}");
            }
        }
    }

    #[test]
    fn an_address_gives_grants_only_if_it_is_verified() {
        let mut by_mail = settings();
        by_mail.groups_claim = "email".into();
        by_mail.group_grants[0].group = "boss@corp.example".into();
        let claims = |verified: bool| json!({"sub": "1", "preferred_username": "boss", "email": "boss@corp.example", "email_verified": verified});
        assert!(person(&by_mail, claims(true)).is_ok());
        assert!(person(&by_mail, claims(false)).is_err());

        by_mail.groups_claim = "groups".into();
        let listed = |verified: bool| {
            let mut claims = claims(verified);
            claims["groups"] = json!(["boss@corp.example"]);
            claims
        };
        assert!(person(&by_mail, listed(true)).is_ok());
        assert!(person(&by_mail, listed(false)).is_err());
        // The address of a group is the provider's word.
        by_mail.group_grants[0].group = "ops@corp.example".into();
        let mut ops = claims(false);
        ops["groups"] = json!(["ops@corp.example"]);
        assert!(person(&by_mail, ops).is_ok());
    }

    #[test]
    fn settings_that_cannot_work_are_refused_by_name() {
        let mut cases = Vec::new();
        let mut case = |key: &'static str, change: &dyn Fn(&mut OidcProvider)| {
            let mut settings = settings();
            change(&mut settings);
            cases.push((key, settings));
        };
        case("oidc.A b.name", &|s| s.name = "A b".into());
        case("oidc.password.name", &|s| s.name = "password".into());
        case("oidc.corp.issuer", &|s| s.issuer = "http://id.example".into());
        case("oidc.corp.client_id", &|s| s.client_id.clear());
        case("oidc.corp.group_grants[1]", &|s| s.group_grants[1].organisation.clear());
        case("oidc.corp.ca_file", &|s| s.ca_file = Some("/nowhere/ca.pem".into()));
        case("oidc.corp.client_secret_file", &|s| s.client_secret_file = Some("/nowhere".into()));
        for (key, settings) in cases {
            let error = Provider::new(&settings, Arc::new(SystemClock)).err().unwrap().to_string();
            assert!(error.starts_with(&format!("{key}: ")), "{error}");
        }
    }
}
