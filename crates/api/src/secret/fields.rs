// Names of fields that hold a secret, whatever message they stand in or, with
// the name of the message, in that one only; sorted.
// Also read by the build script.

/// Fields whose values never appear in a log.
pub const FIELDS: &[&str] = &[
    "access_key_id",
    "answer",
    "auth_public_key",
    "auth_token",
    "cf_key",
    "cookie_secret",
    "csr",
    "current_password",
    "data",
    "docker_reg_pass",
    "docker_registry_secret",
    // Fields that hold secrets of an app.
    "edgeproto.App.command",
    "edgeproto.App.deployment_manifest",
    "edgeproto.ConfigFile.config",
    // Passwords are typed on command lines.
    "edgeproto.ExecRequest.command",
    "edgeproto.ExecRequest.words",
    "encryption_key",
    "generated_password",
    "group_cookie",
    "kubeconfig",
    "new_encryption_key",
    "new_password",
    "offer",
    "open_rc_vars",
    "passhash",
    "password",
    "relay",
    "secret_access_key",
    "selvage.identity.FinishLoginRequest.code",
    "selvage.identity.FinishLoginRequest.verifier",
    "service_account_key",
    "session_cookie",
    "session_token",
    "token",
    "user_data",
    "verify_loc_token",
];
