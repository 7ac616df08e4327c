//! Texts that go with an App beside its manifest.

use selvage_api::edgeproto::{App, ConfigFile};
use serde_json::Value;

use super::{
    super::{Error, Result, deployment},
    yaml,
};

const HELM_VALUES: [&str; 2] = ["hemlCustomizationYaml", "helmCustomizationYaml"];
const ENVIRONMENT: &str = "envVarsYaml";
/// Before the path at which containers find a file.
const FILE: &str = "file:";

/// Longest quote of a config that cannot be read.
const QUOTED: usize = 200;

/// Reads the `config` of an App, JSON or YAML, and returns the one value that
/// is understood of it: its `resources`, empty when there are none.
pub(crate) fn parse_config(text: &str) -> Result<String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let failed = |reason: &str| {
        let quoted: String = text.chars().take(QUOTED).collect();
        Error::invalid(format!(
            "cannot unmarshal json/yaml config str, err {reason}, config `{quoted}`"
        ))
    };
    // JSON is YAML, so one reader does for both.
    let value = yaml::read(text).map_err(|reason| failed(&reason))?;
    let members = match &value {
        Value::Null => return Ok(String::new()),
        Value::Object(members) => members,
        _ => return Err(failed("it is not an object")),
    };
    match members.get("resources") {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(resources)) => Ok(resources.clone()),
        Some(_) => Err(failed("resources is not a string")),
    }
}

/// A virtual machine takes its manifest as cloud-init does.
pub(crate) fn check_cloud_config(app: &App) -> Result<()> {
    if app.deployment_manifest.is_empty() {
        return Ok(());
    }
    let failed =
        |problem: &str| Err(Error::invalid(format!("invalid deploymentment manifest {problem}")));
    if !app.deployment_manifest.starts_with("#cloud-config") {
        return failed("only cloud-init script support, must start with '#cloud-config'");
    }
    if !app.command.is_empty() {
        return failed(
            "both deploymentmanifest and command cannot be used together for VM based deployment",
        );
    }
    // The machine would start, and say nothing of why it does not do its work.
    match yaml::read(&app.deployment_manifest) {
        Ok(Value::Object(_) | Value::Null) => Ok(()),
        Ok(_) => failed("it is not a set of names and values"),
        Err(reason) => failed(&format!("it is not YAML: {reason}")),
    }
}

/// Checks that every customisation file is of a kind that suits the deployment,
/// and can be read.
pub(crate) fn check_config_files(app_deployment: &str, files: &[ConfigFile]) -> Result<()> {
    files.iter().try_for_each(|file| {
        let suitable: &[&str] = match file.kind.as_str() {
            kind if HELM_VALUES.contains(&kind) => &[deployment::HELM],
            ENVIRONMENT => &[deployment::KUBERNETES, deployment::DOCKER],
            kind if kind.starts_with(FILE) => &[deployment::DOCKER],
            other => {
                return Err(Error::invalid(format!(
                    "invalid config kind {other}, must be one of [{} {ENVIRONMENT}]",
                    HELM_VALUES.join(" ")
                )));
            }
        };
        if !suitable.contains(&app_deployment) {
            return Err(Error::invalid(format!(
                "config kind {} is not valid for deployment {app_deployment}",
                file.kind
            )));
        }
        check_content(app_deployment, file)
    })
}

fn check_content(app_deployment: &str, file: &ConfigFile) -> Result<()> {
    let failed =
        |reason: &str| Error::invalid(format!("invalid config of kind {}, {reason}", file.kind));
    if let Some(path) = file.kind.strip_prefix(FILE) {
        return if is_path(path) { Ok(()) } else { Err(failed("it is not the path of a file")) };
    }
    if file.config.trim().is_empty() {
        return Err(failed("it is empty"));
    }
    let value = yaml::read(&file.config).map_err(|reason| failed(&reason))?;
    match (&value, file.kind.as_str()) {
        (Value::Array(variables), ENVIRONMENT) => variables.iter().try_for_each(|variable| {
            check_variable(app_deployment, variable).map_err(|reason| failed(&reason))
        }),
        (_, ENVIRONMENT) => Err(failed("it is not a list of variables")),
        (Value::Object(_) | Value::Null, _) => Ok(()),
        _ => Err(failed("it is not an object")),
    }
}

/// Returns true if a container can have a file of its App there.
fn is_path(path: &str) -> bool {
    let kernels = ["proc", "sys", "dev"];
    let mut parts = path.split('/');
    let absolute = parts.next() == Some("");
    let mut parts = parts.peekable();
    let elsewhere = parts.peek().is_some_and(|first| !kernels.contains(first));
    absolute
        && elsewhere
        && path.len() < 4096
        && !path.contains('\0')
        && parts.all(|part| !["", ".", ".."].contains(&part))
}

/// A variable as Kubernetes writes it. What only a cluster can look up has no
/// value in a container.
fn check_variable(app_deployment: &str, variable: &Value) -> std::result::Result<(), String> {
    let name = variable["name"].as_str().filter(|name| !name.is_empty());
    let name = name.ok_or("every variable needs a name")?;
    let only_here = |member: &&String| !["name", "value"].contains(&member.as_str());
    let other = variable.as_object().and_then(|members| members.keys().find(only_here));
    match other {
        Some(other) if app_deployment == deployment::DOCKER => {
            Err(format!("{other} of the variable {name} needs deployment kubernetes"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn configs_are_read_as_json_or_yaml() {
        for text in ["{\"resources\": \"a\", \"x\": 1}", "resources: a\nx: [1]\n"] {
            assert_eq!(parse_config(text).unwrap(), "a");
        }
        for text in ["", "{}", "x: 1", "# nothing"] {
            assert_eq!(parse_config(text).unwrap(), "");
        }
        let refusal = |text| parse_config(text).unwrap_err().to_string();
        assert_eq!(
            refusal("just text"),
            "cannot unmarshal json/yaml config str, err it is not an object, config `just text`"
        );
        assert!(refusal("{\"a\":").starts_with("cannot unmarshal json/yaml config str, err "));
        assert!(refusal("{\"a\":").ends_with(", config `{\"a\":`"));
        assert!(refusal("resources: {a: b}").contains("resources is not a string"));
    }

    #[test]
    fn a_machine_takes_cloud_init_only() {
        let check = |manifest: &str, command: &str| {
            let app = App {
                deployment_manifest: manifest.into(),
                command: command.into(),
                ..App::default()
            };
            check_cloud_config(&app).map_err(|error| error.to_string())
        };
        check("", "").unwrap();
        check("", "run").unwrap();
        check("#cloud-config\n", "").unwrap();
        check("#cloud-config\nruncmd: [[touch, /a]]\n", "").unwrap();
        let binary = "#cloud-config\nwrite_files:\n- content: !!binary |\n    aGk=\n  path: /a\n";
        check(binary, "").unwrap();
        let refused = check("#cloud-config\nruncmd: [a\nb: c: d\n", "").unwrap_err();
        assert!(
            refused.starts_with("invalid deploymentment manifest it is not YAML: "),
            "{refused}"
        );
        assert_eq!(
            check("#cloud-config\n- touch /a\n", "").unwrap_err(),
            "invalid deploymentment manifest it is not a set of names and values"
        );
        assert_eq!(
            check("#!/bin/sh\n", "").unwrap_err(),
            "invalid deploymentment manifest only cloud-init script support, \
             must start with '#cloud-config'"
        );
        assert_eq!(
            check("#cloud-config\n", "run").unwrap_err(),
            "invalid deploymentment manifest both deploymentmanifest and command \
             cannot be used together for VM based deployment"
        );
    }

    #[test]
    fn customisation_files_suit_the_deployment() {
        let check = |deployment: &str, kind: &str, config: &str| {
            let file = ConfigFile { kind: kind.into(), config: config.into() };
            check_config_files(deployment, &[file]).map_err(|error| error.to_string())
        };
        for kind in HELM_VALUES {
            check("helm", kind, "a: {b: 1}").unwrap();
            assert!(check("helm", kind, "[a]").is_err());
        }
        let looked_up = "- name: A\n  valueFrom: {fieldRef: {fieldPath: status.podIP}}\n";
        check("kubernetes", "envVarsYaml", looked_up).unwrap();
        assert_eq!(
            check("docker", "envVarsYaml", looked_up).unwrap_err(),
            "invalid config of kind envVarsYaml, valueFrom of the variable A needs deployment \
             kubernetes"
        );
        for deployment in ["kubernetes", "docker"] {
            check(deployment, "envVarsYaml", "- name: A\n  value: b\n- name: C\n").unwrap();
        }
        assert_eq!(
            check("vm", "envVarsYaml", "- name: A\n").unwrap_err(),
            "config kind envVarsYaml is not valid for deployment vm"
        );
        assert_eq!(
            check("kubernetes", "envVarsYaml", "a: b").unwrap_err(),
            "invalid config of kind envVarsYaml, it is not a list of variables"
        );
        assert_eq!(
            check("kubernetes", "envVarsYaml", "- value: b").unwrap_err(),
            "invalid config of kind envVarsYaml, every variable needs a name"
        );
        assert_eq!(
            check("kubernetes", "envVarsYaml", " ").unwrap_err(),
            "invalid config of kind envVarsYaml, it is empty"
        );
        assert_eq!(
            check("kubernetes", "helmCustomizationYaml", "a: b").unwrap_err(),
            "config kind helmCustomizationYaml is not valid for deployment kubernetes"
        );
        check("docker", "file:/etc/app/app.conf", "any = text [").unwrap();
        assert_eq!(
            check("kubernetes", "file:/etc/app.conf", "a").unwrap_err(),
            "config kind file:/etc/app.conf is not valid for deployment kubernetes"
        );
        for bad in ["", "/", "etc/x", "/etc/", "/etc/../x", "/etc//x", "/proc/1/mem", "/dev"] {
            let wrong_path = check("docker", &format!("file:{bad}"), "a").unwrap_err();
            assert!(wrong_path.ends_with(", it is not the path of a file"), "{wrong_path}");
        }
        assert_eq!(
            check("helm", "helm-values", "a: b").unwrap_err(),
            "invalid config kind helm-values, must be one of \
             [hemlCustomizationYaml helmCustomizationYaml envVarsYaml]"
        );
    }
}
