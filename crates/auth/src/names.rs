//! The rules for usernames, passwords and grants, and grants on the wire.

use selvage_api::selvage::identity as wire;
use selvage_kit::identity::{Grant, Machine, Role};

use crate::error::{Error, Result};

const USERNAME_MAX: usize = 64;
const PASSWORD_MIN: usize = 8;
const PASSWORD_MAX: usize = 256;
const ORGANISATION_MAX: usize = 128;
const GRANTS_MAX: usize = 64;

/// Returns whether the text can be a username.
pub(crate) fn is_username(name: &str) -> bool {
    name.len() <= USERNAME_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._@-".contains(c))
}

pub(crate) fn check_username(field: &'static str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    if !is_username(name) {
        let reason = "1 to 64 letters, digits and any of . _ @ - , starting with a letter or digit";
        return Err(Error::invalid(field, reason));
    }
    Ok(())
}

pub(crate) fn check_password(field: &'static str, password: &str) -> Result<()> {
    let length = password.chars().count();
    if !(PASSWORD_MIN..=PASSWORD_MAX).contains(&length) {
        let reason = format!("must have {PASSWORD_MIN} to {PASSWORD_MAX} characters, has {length}");
        return Err(Error::invalid(field, reason));
    }
    Ok(())
}

/// Reads one grant; `Err` says what is wrong with it.
pub(crate) fn parse_grant(role: &str, organisation: &str) -> Result<Grant, String> {
    let Some(role) = Role::parse(role) else {
        let known = Role::ALL.map(Role::name).join(", ");
        return Err(format!("role {role:?} is not one of {known}"));
    };
    match (role.of_organisation(), organisation.is_empty()) {
        (true, true) => return Err(format!("role {role} needs an organisation")),
        (false, false) => return Err(format!("role {role} holds everywhere: no organisation")),
        _ => {}
    }
    let sound =
        organisation.len() <= ORGANISATION_MAX && !organisation.chars().any(char::is_control);
    if !sound {
        return Err(format!(
            "organisation must have at most {ORGANISATION_MAX} bytes and no control characters"
        ));
    }
    Ok(Grant { role, organisation: organisation.to_owned() })
}

/// Reads the grants of a request, each once.
pub(crate) fn grants_from_wire(field: &'static str, grants: &[wire::Grant]) -> Result<Vec<Grant>> {
    if grants.len() > GRANTS_MAX {
        return Err(Error::invalid(field, format!("at most {GRANTS_MAX}")));
    }
    let mut read = Vec::new();
    for (index, grant) in grants.iter().enumerate() {
        let grant = parse_grant(&grant.role, &grant.organisation)
            .map_err(|reason| Error::invalid(field, format!("[{index}]: {reason}")))?;
        if !read.contains(&grant) {
            read.push(grant);
        }
    }
    Ok(read)
}

pub(crate) fn grants_to_wire(grants: &[Grant]) -> Vec<wire::Grant> {
    grants
        .iter()
        .map(|grant| wire::Grant {
            role: grant.role.name().into(),
            organisation: grant.organisation.clone(),
        })
        .collect()
}

pub(crate) fn check_machine(field: &'static str, text: &str) -> Result<Machine> {
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(field, "must have no control characters"));
    }
    Machine::parse(text).map_err(|error| Error::invalid(field, error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn usernames_follow_the_rule_of_the_contract() {
        let longest = "a".repeat(64);
        for name in ["a", "7", "anna", "a.b_c-d@example.org", &longest] {
            assert!(is_username(name), "{name}");
        }
        let too_long = "a".repeat(65);
        for name in ["", ".a", "-a", "@", "a b", "a/b", "ä", "a\n", &too_long] {
            assert!(!is_username(name), "{name:?}");
        }
    }

    #[test]
    fn password_length_counts_characters_and_names_the_field() {
        assert!(check_password("password", "ääääääää").is_ok());
        assert!(check_password("password", &"x".repeat(256)).is_ok());
        for wrong in ["", "1234567", &"x".repeat(257)] {
            let error = check_password("new_password", wrong).unwrap_err().to_string();
            assert!(error.starts_with("new_password: "), "{error}");
            assert!(wrong.is_empty() || !error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn a_grant_has_an_organisation_exactly_where_its_role_needs_one() {
        for (role, organisation) in
            [("admin", ""), ("viewer", ""), ("operator", "tmus"), ("developer", "acme")]
        {
            assert!(parse_grant(role, organisation).is_ok(), "{role}");
        }
        for (role, organisation) in
            [("admin", "x"), ("viewer", "x"), ("operator", ""), ("developer", ""), ("root", "")]
        {
            assert!(parse_grant(role, organisation).is_err(), "{role}");
        }
    }

    #[test]
    fn grants_are_read_once_each_and_errors_name_the_place() {
        let grant = |role: &str| wire::Grant { role: role.into(), organisation: String::new() };
        let read = grants_from_wire("grants", &[grant("admin"), grant("admin")]).unwrap();
        assert_eq!(read.len(), 1);
        let error = grants_from_wire("grants", &[grant("admin"), grant("king")]).unwrap_err();
        assert!(error.to_string().starts_with("grants: [1]: "), "{error}");
    }
}
