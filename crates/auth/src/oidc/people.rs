//! From claims to a user: who is let in, with which grants.

use selvage_kit::identity::Grant;
use serde_json::Value;

use super::{
    Reason, Refusal,
    id_token::{self, Claims},
    provider::Provider,
};
use crate::names;

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
        if claim == "email" && !is_verified(claims) {
            return refused("the provider has not verified the e-mail address".into());
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

/// Returns whether the provider says that the address is its owner's. Some
/// write the claim as text; one that leaves it out has not said so.
fn is_verified(claims: &Claims) -> bool {
    match claims.get("email_verified") {
        Some(Value::Bool(verified)) => *verified,
        Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
        Some(_) | None => false,
    }
}

/// A claim that is one group or a list of groups.
fn groups<'a>(claims: &'a Claims, name: &str) -> Vec<&'a str> {
    match claims.get(name) {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
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
