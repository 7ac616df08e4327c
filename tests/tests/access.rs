//! Every method of every contract, called by those who may not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use prost::Message;
use prost_reflect::{DynamicMessage, Value};
use selvage_api::selvage::identity::{
    AddUserRequest, Grant, User, identity_service_client::IdentityServiceClient,
};
use selvage_kit::{
    access::{Access, Effect, Who},
    identity::Role,
};
use selvage_tests::{Client, Selvage};
use tonic::Code;

const PASSWORD: &str = "a long enough password";

async fn user(
    selvage: &Selvage,
    admin: &Client,
    name: &str,
    role: &str,
    organisation: &str,
) -> Client {
    let grant = Grant { role: role.into(), organisation: organisation.into() };
    let user = User { username: name.into(), grants: vec![grant], ..Default::default() };
    let request = AddUserRequest { user: Some(user), password: PASSWORD.into() };
    let mut identity = IdentityServiceClient::new(admin.channel.clone());
    identity.add_user(admin.request(request)).await.unwrap();
    Client::login(selvage, name, PASSWORD).await.unwrap()
}

/// A request of the method's type with a string set at the dotted path.
fn request_naming(path: &str, field: &str, organisation: &str) -> Vec<u8> {
    let method = selvage_api::method(path).unwrap();
    let mut message = DynamicMessage::new(method.input.clone());
    set(&mut message, field, organisation);
    message.encode_to_vec()
}

fn set(message: &mut DynamicMessage, field: &str, text: &str) {
    match field.split_once('.') {
        None => message.set_field_by_name(field, Value::String(text.into())),
        Some((first, rest)) => {
            let mut inner = match message.get_field_by_name(first).unwrap().into_owned() {
                Value::Message(inner) => inner,
                other => panic!("{first} is {other:?}"),
            };
            set(&mut inner, rest, text);
            message.set_field_by_name(first, Value::Message(inner));
        }
    }
}

/// Returns whether a status means that access was not what stopped the call.
fn let_in(code: Code) -> bool {
    !matches!(code, Code::Unauthenticated | Code::PermissionDenied)
}

#[tokio::test]
async fn without_credentials_only_open_methods_answer() {
    let selvage = Selvage::up(&[]);
    let nobody = Client::anonymous(&selvage).await;
    let liar = Client { token: Some("slv_not-a-token".into()), ..nobody.clone() };
    for rule in Access::load().unwrap().rules() {
        // Logging in with nothing is refused too, but by the service itself.
        if rule.open_to_anyone() {
            continue;
        }
        for client in [&nobody, &liar] {
            let code = client.code(&rule.path, &[]).await;
            assert_eq!(code, Code::Unauthenticated, "{}", rule.path);
        }
    }
}

#[tokio::test]
async fn wrong_roles_and_wrong_organisations_are_refused_everywhere() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    let developer = user(&selvage, &admin, "dev", "developer", "Acme").await;
    let operator = user(&selvage, &admin, "ops", "operator", "Tele").await;
    let viewer = user(&selvage, &admin, "eye", "viewer", "").await;
    for rule in Access::load().unwrap().rules() {
        let path = rule.path.as_str();
        // These end the very session that asks.
        if path.ends_with("/Logout") || path.ends_with("/SetPassword") {
            continue;
        }
        let open = rule.who().iter().any(|who| matches!(who, Who::Anyone | Who::Person));
        if open {
            continue;
        }
        // A machine's own business, which even an admin cannot do for it.
        if !path.ends_with("/Renew") && !path.ends_with("/CheckAssertion") {
            assert!(let_in(admin.begins(path, &[]).await), "admin: {path}");
        }
        // Others than admins may ask the machine's own time server alone, which the
        // service itself judges.
        if path.ends_with("/TimeCheck") {
            continue;
        }
        let looks = rule.effect == Effect::Read;
        assert_eq!(let_in(viewer.begins(path, &[]).await), looks, "viewer: {path}");
        check_members(rule.who(), path, &developer, &operator).await;
    }
}

async fn check_members(who: &[Who], path: &str, developer: &Client, operator: &Client) {
    for (client, role, mine) in
        [(developer, Role::Developer, "Acme"), (operator, Role::Operator, "Tele")]
    {
        let field = who.iter().find_map(|who| match who {
            Who::Member(of, field) if *of == role => Some(*field),
            _ => None,
        });
        let holder = who.contains(&Who::Holder(role));
        match field {
            Some(field) => {
                let own = request_naming(path, field, mine);
                assert!(let_in(client.begins(path, &own).await), "{role} of {mine}: {path}");
                let foreign = request_naming(path, field, "Somebody Else");
                let code = client.code(path, &foreign).await;
                assert_eq!(code, Code::PermissionDenied, "{role} of {mine}: {path}");
            }
            None => {
                let code = client.begins(path, &[]).await;
                assert_eq!(let_in(code), holder, "{role} of {mine}: {path} says {code:?}");
            }
        }
    }
}
