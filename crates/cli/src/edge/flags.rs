//! The command line of the objects, made from the contracts: one command a
//! kind, one flag a field.
//!
//! Flags have the original's names, the lower-case path joined by `-`, and
//! where the original's other client has a short name, that as well.

use std::path::PathBuf;

use clap::{
    Arg, ArgAction, ArgMatches,
    builder::{PossibleValue, PossibleValuesParser},
};
use prost_reflect::{
    DynamicMessage, FieldDescriptor, FileDescriptor, Kind as Type, MessageDescriptor, Value,
};
use selvage_api::object::{Leaf, camel_name, plan};

use super::{
    Draft, Kind, Verb,
    catalog::{self, kinds},
    draft::{self, Position},
    scalar::{enum_names, normal},
    yaml::{self, Content, Node},
};
use crate::Error;

const MODES: &str = "How";
const KEY: &str = "Which";
const FIELDS: &str = "Fields";

/// A command about an object: which kind, what to do, and the rest.
#[derive(Debug)]
pub struct Object {
    pub(crate) kind: &'static Kind,
    pub(crate) action: Action,
    pub(crate) args: ObjectArgs,
}

/// Action on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Verb(Verb),
    /// List the revisions of an instance.
    History,
    /// Run this revision of an instance again; 0 is the one of before.
    Rollback(u64),
}

/// Arguments after the verb.
#[derive(Debug, Default)]
pub(crate) struct ObjectArgs {
    values: Vec<(Flag, Vec<String>)>,
    set: Vec<String>,
    /// The object by name, instead of or besides the flags of its key.
    pub(crate) name: Option<String>,
    pub(crate) file: Option<PathBuf>,
    pub(crate) yes: bool,
    pub(crate) watch: bool,
    pub(crate) dry_run: bool,
    /// All objects that the flags of the key fit.
    pub(crate) all: bool,
    /// All objects whose fields fit, such as `cloudlet=here,state!=READY`.
    pub(crate) selector: Option<String>,
    /// Go on with the others after one failed.
    pub(crate) keep_going: bool,
}

/// The flag of one leaf.
#[derive(Debug, Clone)]
pub(crate) struct Flag {
    leaf: Leaf,
    field: FieldDescriptor,
    /// The field whose comment says what it is for.
    described_by: FieldDescriptor,
    /// As the original spells it.
    long: String,
    short: Vec<String>,
}

impl Flag {
    /// The name that help shows first.
    fn name(&self) -> &str {
        self.short.first().unwrap_or(&self.long)
    }
}

/// The flags of a kind: of all leaves that one value or several can fill.
pub(crate) fn flags(kind: &Kind) -> Vec<Flag> {
    let plan = plan(&kind.message);
    // What only a crm is sent can be neither given nor asked for.
    let leaves = plan.leaves().iter().filter(|leaf| !leaf.name.starts_with("pinned_app."));
    let mut flags: Vec<Flag> = leaves.filter_map(|leaf| flag(&kind.message, leaf)).collect();
    // What a field is called in full comes before what another is called for
    // short.
    let longs: Vec<String> = flags.iter().map(|flag| flag.long.clone()).collect();
    let mut taken = Vec::new();
    for flag in &mut flags {
        let own = flag.long.clone();
        flag.short.retain(|short| *short != own && !longs.contains(short));
        flag.short.retain(|short| {
            let free = !taken.contains(short);
            taken.push(short.clone());
            free
        });
    }
    flags
}

fn flag(message: &MessageDescriptor, leaf: &Leaf) -> Option<Flag> {
    let mut inside = vec![message.clone()];
    let mut field = message.get_field(*leaf.numbers.first()?)?;
    let mut described_by = field.clone();
    for number in leaf.numbers.get(1..)? {
        let Type::Message(inner) = field.kind() else { return None };
        if field.is_list() {
            return None;
        }
        field = inner.get_field(*number)?;
        // Of a message that is a name and nothing else, the comment outside
        // says more.
        if inner.fields().len() > 1 || field.name() != "name" {
            described_by = field.clone();
        }
        inside.push(inner);
    }
    if field.is_map() || matches!(field.kind(), Type::Message(_)) {
        return None;
    }
    let long: Vec<String> = leaf.name.split('.').map(normal).collect();
    let short = short_names(&leaf.name, &inside);
    Some(Flag { leaf: leaf.clone(), field, described_by, long: long.join("-"), short })
}

/// Short name of the field; `inside` are the messages from the top
/// one down to the one that has it.
fn short_names(path: &str, inside: &[MessageDescriptor]) -> Vec<String> {
    let name = path.rsplit('.').next().unwrap_or(path);
    let owner = inside.last().map_or("", |message| message.name());
    let top_key = inside.len() == 2;
    let names: &[&str] = match (owner, name) {
        _ if !path.starts_with("key.") => {
            return match (name, path.split('.').nth_back(1)) {
                ("name", Some(outer)) => vec![normal(outer)],
                ("latitude" | "longitude", Some("location")) => vec![name.to_owned()],
                _ => Vec::new(),
            };
        }
        ("AppKey", "name") => &["appname"],
        ("AppKey", "version") => &["appvers"],
        ("ClusterInstKey", "developer") if top_key => &["developer"],
        ("ClusterInstKey", "developer") => &["clusterdeveloper"],
        ("DeveloperKey", "name") if top_key => &["name", "developer"],
        ("OperatorKey", "name") if top_key => &["name", "operator"],
        ("CloudletKey", "name") if top_key => &["name", "cloudlet"],
        ("ClusterKey", "name") if top_key => &["name", "cluster"],
        ("FlavorKey", "name") if top_key => &["name", "flavor"],
        ("DeveloperKey", "name") => &["developer"],
        ("OperatorKey", "name") => &["operator"],
        ("CloudletKey", "name") => &["cloudlet"],
        ("ClusterKey", "name") => &["cluster"],
        (_, other) if top_key => return vec![normal(other)],
        _ => &[],
    };
    names.iter().map(|&name| name.to_owned()).collect()
}

impl clap::FromArgMatches for Object {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        let (word, matches) = matches.subcommand().ok_or_else(missing)?;
        let kind = catalog::kind(word).ok_or_else(missing)?;
        let (word, matches) = matches.subcommand().ok_or_else(missing)?;
        let verb = Verb::ALL.into_iter().find(|verb| verb.word() == word);
        let action = match (word, verb) {
            (_, Some(verb)) => Action::Verb(verb),
            (HISTORY, None) => Action::History,
            (ROLLBACK, None) => {
                Action::Rollback(matches.get_one::<u64>(TO_REVISION).copied().unwrap_or_default())
            }
            _ => return Err(missing()),
        };
        Ok(Self { kind, action, args: ObjectArgs::of(kind, matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Subcommand for Object {
    fn augment_subcommands(root: clap::Command) -> clap::Command {
        root.subcommands(kinds().iter().map(command))
    }

    fn augment_subcommands_for_update(root: clap::Command) -> clap::Command {
        Self::augment_subcommands(root)
    }

    fn has_subcommand(name: &str) -> bool {
        kinds().iter().any(|kind| kind.command() == name)
    }
}

impl ObjectArgs {
    fn of(kind: &'static Kind, matches: &ArgMatches) -> Self {
        let many = |id: &str| -> Vec<String> {
            let values = matches.try_get_many::<String>(id).ok().flatten();
            values.map(|values| values.cloned().collect()).unwrap_or_default()
        };
        let on = |id: &str| matches.try_get_one::<bool>(id).ok().flatten() == Some(&true);
        let values = flags(kind).into_iter().map(|flag| {
            let values = many(&flag.leaf.name);
            (flag, values)
        });
        Self {
            values: values.filter(|(_, values)| !values.is_empty()).collect(),
            set: many("set"),
            name: many(NAME).pop(),
            file: matches.try_get_one::<PathBuf>("file").ok().flatten().cloned(),
            yes: on("yes"),
            watch: on("watch"),
            dry_run: on("dry-run"),
            all: on(ALL),
            selector: many(SELECTOR).pop(),
            keep_going: on(KEEP_GOING),
        }
    }

    /// Arguments that name an object.
    pub(crate) fn named(name: String) -> Self {
        Self { name: Some(name), ..Self::default() }
    }

    /// Puts what the flags say of the key on top of what is there.
    pub(crate) fn fill_key(&self, draft: &mut Draft) -> Result<(), Error> {
        let keys = self.values.iter().filter(|(flag, _)| flag.leaf.name.starts_with("key."));
        keys.into_iter().try_for_each(|(flag, values)| set_flag(draft, flag, values))
    }

    /// Paths of `--set` that change a field in part: an element of a list, or
    /// an entry of a mapping.
    pub(crate) fn partial_paths(&self, kind: &Kind) -> Vec<&str> {
        let paths = self.set.iter().filter_map(|setting| Some(setting.split_once('=')?.0));
        let is_partial = |path: &&str| {
            let first = path.split(['.', '[']).next().unwrap_or(path);
            let wanted = normal(first);
            let field = kind.message.fields().find(|field| normal(field.name()) == wanted);
            path.contains('[') || (path.contains('.') && field.is_some_and(|field| field.is_map()))
        };
        paths.filter(is_partial).collect()
    }

    /// Returns whether several objects are meant.
    pub(crate) fn means_many(&self) -> bool {
        self.all || self.selector.is_some()
    }

    /// Puts what the flags say on top of what is there.
    pub(crate) fn fill(&self, draft: &mut Draft) -> Result<(), Error> {
        for (flag, values) in &self.values {
            set_flag(draft, flag, values)?;
        }
        for setting in &self.set {
            let (path, value) = setting
                .split_once('=')
                .ok_or_else(|| Error::invalid(format!("--set {setting:?}: must be path=value")))?;
            draft.set_path(path, &setting_value(value)?, &Position::new("--set"))?;
        }
        Ok(())
    }

    pub(crate) fn names_nothing(&self) -> bool {
        let flags = self.values.is_empty() && self.set.is_empty() && self.name.is_none();
        flags && self.file.is_none() && !self.means_many()
    }
}

fn set_flag(draft: &mut Draft, flag: &Flag, values: &[String]) -> Result<(), Error> {
    let origin = format!("--{}", flag.name());
    let position = Position::new(&origin);
    let nodes: Vec<Node> = values
        .iter()
        .map(|value| Ok(Node::text(&content(flag, value, &origin)?)))
        .collect::<Result<_, Error>>()?;
    let node = match (flag.field.is_list(), nodes.as_slice()) {
        (false, [.., last]) => last.clone(),
        _ => Node { line: 0, content: Content::List(nodes) },
    };
    draft.set_leaf(&flag.leaf.numbers, &node, &position)
}

/// Names of the flags of a kind.
pub(crate) fn names(kind: &Kind) -> Vec<String> {
    flags(kind).iter().map(|flag| flag.name().to_owned()).collect()
}

/// Values of an object by the names of its flags, as selectors compare them.
pub(crate) fn labels(kind: &Kind, object: &DynamicMessage) -> selvage_kit::labels::Labels {
    let text = |flag: &Flag| {
        let value = draft::values_at(object, &flag.leaf.numbers).into_iter().next()?;
        match (&value, flag.field.kind()) {
            (Value::EnumNumber(number), Type::Enum(names)) => {
                names.get_value(*number).map(|value| value.name().to_owned())
            }
            (Value::String(text), _) => Some(text.clone()),
            (Value::Bool(is), _) => Some(is.to_string()),
            _ => None,
        }
    };
    let all = flags(kind).into_iter();
    all.filter_map(|flag| Some((flag.name().to_owned(), text(&flag)?))).collect()
}

/// The text of a flag: itself, or what the file behind `@` holds. What is
/// secret has no business on a command line.
fn content(flag: &Flag, value: &str, origin: &str) -> Result<String, Error> {
    match value.strip_prefix('@') {
        Some(path) if matches!(flag.field.kind(), Type::String) => {
            std::fs::read_to_string(path).map_err(|source| Error::read(path, source))
        }
        _ if must_be_a_file(&flag.field) && !value.is_empty() => Err(Error::Invalid {
            message: format!("{origin}: a secret does not belong on a command line"),
            hints: vec![format!("put it into a file and say {origin} @FILE")],
        }),
        _ => Ok(value.to_owned()),
    }
}

/// Fields that are kept out of logs because they may hold a secret, and need not.
const MAY_BE_WRITTEN: [&str; 3] = ["auth_public_key", "command", "deployment_manifest"];

fn must_be_a_file(field: &FieldDescriptor) -> bool {
    selvage_api::secret::is_secret(field) && !MAY_BE_WRITTEN.contains(&field.name())
}

/// Lists and mappings are written as in YAML's `[…]` and `{…}`.
fn setting_value(text: &str) -> Result<Node, Error> {
    if !text.starts_with(['[', '{']) {
        return Ok(Node::text(text));
    }
    let mut documents = yaml::documents(text, "--set")?;
    let node = documents.drain(..).next();
    Ok(node.unwrap_or_else(|| Node::text(text)))
}

fn command(kind: &'static Kind) -> clap::Command {
    let name = kind.command().to_owned();
    let service = kind.method(Verb::Show).map(|method| method.descriptor.parent_service().clone());
    let about = service.map(|s| first_sentence(&s.parent_file(), s.path())).unwrap_or_default();
    let mut command = clap::Command::new(name.clone())
        .about(about)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(examples(kind))
        // Flags are many, and most runs want those of one kind or none.
        .defer(with_verbs);
    for alias in [&kind.plural, &kind.word] {
        if *alias != name && !matches!(alias.as_str(), "controller" | "node") {
            command = command.visible_alias(alias.clone());
        }
    }
    command
}

fn examples(kind: &Kind) -> String {
    let name = kind.command();
    let mut lines = vec!["Examples:".to_owned()];
    if kind.order().is_some() && kind.name != "CloudletInfo" {
        lines.push(format!("  selvage {name} create -f {name}.yaml"));
    }
    lines.push(format!("  selvage {name} show -o yaml"));
    lines.push(format!("  selvage {name} show --help        what can be asked for"));
    lines.join("\n")
}

fn with_verbs(command: clap::Command) -> clap::Command {
    let Some(kind) = catalog::kind(command.get_name()) else { return command };
    let verbs = Verb::ALL.into_iter().filter(|verb| kind.method(*verb).is_some());
    let command =
        command.subcommands(verbs.map(|verb| verb_command(kind, verb)).collect::<Vec<_>>());
    if kind.name != "AppInst" {
        return command;
    }
    let to = Arg::new(TO_REVISION)
        .long(TO_REVISION)
        .value_name("NUMBER")
        .value_parser(clap::value_parser!(u64).range(1..))
        .help("Revision to run again; the one of before where not given")
        .help_heading(MODES);
    let dry = switch("dry-run", None, "Only say what would be done");
    let history = "List the revisions of an instance: what it ran, since when, by whom";
    let rollback = "Run an earlier revision of an instance again";
    command.subcommands([
        clap::Command::new(HISTORY).about(history).args(key_arguments(kind)),
        clap::Command::new(ROLLBACK).about(rollback).args(key_arguments(kind)).args([to, dry]),
    ])
}

/// Ids of arguments that are no fields.
const NAME: &str = "@name";
const ALL: &str = "@all";
const SELECTOR: &str = "@selector";
const KEEP_GOING: &str = "keep-going";
const HISTORY: &str = "history";
const ROLLBACK: &str = "rollback";
const TO_REVISION: &str = "to-revision";

/// Flags of the key alone.
fn key_arguments(kind: &'static Kind) -> Vec<Arg> {
    let keys = flags(kind).into_iter().filter(|flag| flag.leaf.name.starts_with("key."));
    let keys = keys.map(|flag| argument(kind, Verb::Delete, &flag, true));
    [name_argument()].into_iter().chain(keys).collect()
}

/// The object by its name.
fn name_argument() -> Arg {
    Arg::new(NAME)
        .value_name("NAME")
        .help("Its name, or its key as lists of names print it: OPERATOR/NAME")
        .help_heading(KEY)
}

fn verb_command(kind: &'static Kind, verb: Verb) -> clap::Command {
    let method = kind.method(verb).map(|method| &method.descriptor);
    let about = method.map(|m| first_sentence(&m.parent_service().parent_file(), m.path()));
    let mut command = clap::Command::new(verb.word()).about(about.unwrap_or_default());
    if verb == Verb::Show {
        command = command.visible_aliases(["list", "get", "describe"]);
    }
    command = command.arg(name_argument());
    let mut flags = flags(kind);
    // The key first: it stands in every command.
    flags.sort_by_key(|flag| !flag.leaf.name.starts_with("key."));
    for flag in flags {
        let is_key = flag.leaf.name.starts_with("key.");
        if verb == Verb::Delete && !is_key && flag.leaf.name != "crm_override" {
            continue;
        }
        command = command.arg(argument(kind, verb, &flag, is_key));
    }
    if verb != Verb::Show {
        command =
            command.args([file_argument(), switch("dry-run", None, "Only say what would be done")]);
    }
    let streams = kind.method(verb).is_some_and(|method| method.server_streaming);
    match verb {
        Verb::Show => {
            command = command.arg(switch("watch", Some('w'), "Go on and show what changes"));
        }
        Verb::Delete => command = command.arg(switch("yes", Some('y'), "Do not ask")),
        Verb::Update if kind.name == "AppInst" => command = command.args(many_arguments()),
        Verb::Create | Verb::Update => {}
    }
    if verb != Verb::Show && streams {
        let help = "If the connection breaks, come back and follow the work to its end";
        command = command.arg(switch("watch", Some('w'), help));
    }
    command.arg(
        Arg::new("set")
            .long("set")
            .value_name("PATH=VALUE")
            .action(ArgAction::Append)
            .help("Any field by its path, such as configs[0].kind=envVarsYaml; may be repeated")
            .help_heading(MODES),
    )
}

fn argument(kind: &Kind, verb: Verb, flag: &Flag, is_key: bool) -> Arg {
    let file = flag.described_by.parent_message().parent_file();
    let mut help = first_sentence(&file, flag.described_by.path());
    if must_be_a_file(&flag.field) {
        help.push_str(" (@FILE)");
    }
    let mut arg = Arg::new(flag.leaf.name.clone())
        .long(flag.name().to_owned())
        .value_name(value_name(&flag.field))
        .help(help)
        .help_heading(if is_key { KEY } else { FIELDS })
        .allow_hyphen_values(matches!(flag.field.kind(), Type::Double | Type::Float))
        .allow_negative_numbers(true)
        .hide(verb != Verb::Show && hidden(kind, &flag.leaf.name))
        .action(if flag.field.is_list() { ArgAction::Append } else { ArgAction::Set });
    let others = flag.short.iter().chain([&flag.long]).filter(|name| *name != flag.name());
    arg = arg.visible_aliases(others.cloned().collect::<Vec<_>>());
    if let Type::Enum(known) = flag.field.kind() {
        let values = known.values().map(|value| {
            let names = enum_names(&known, value.name());
            let number = value.number().to_string();
            PossibleValue::new(camel_name(value.name())).aliases(names).alias(number)
        });
        arg = arg
            .value_parser(PossibleValuesParser::new(values.collect::<Vec<_>>()))
            .ignore_case(true);
    }
    arg
}

/// Fields that only a server fills can be sent, but are not offered.
fn hidden(kind: &Kind, field: &str) -> bool {
    let odd_location = field.starts_with("location.")
        && !matches!(field, "location.latitude" | "location.longitude" | "location.altitude");
    odd_location || (kind.is_server_set(field) && field != "crm_override")
}

fn value_name(field: &FieldDescriptor) -> &'static str {
    match field.kind() {
        Type::String => "TEXT",
        Type::Bool => "BOOL",
        Type::Enum(_) => "WORD",
        _ => "NUMBER",
    }
}

/// Flags by which an update means several objects.
fn many_arguments() -> [Arg; 3] {
    let all = Arg::new(ALL)
        .long("all")
        .action(ArgAction::SetTrue)
        .conflicts_with_all([NAME, "file"])
        .help("All instances that the flags of the key fit")
        .help_heading(MODES);
    let selector = Arg::new(SELECTOR)
        .short('l')
        .long("selector")
        .value_name("FIELDS")
        .conflicts_with_all([NAME, "file"])
        .help("All instances whose fields fit, such as cloudlet=here,appvers!=2.0")
        .help_heading(MODES);
    let help = "Go on with the others after one could not be updated";
    [all, selector, switch(KEEP_GOING, None, help)]
}

fn file_argument() -> Arg {
    Arg::new("file")
        .short('f')
        .long("file")
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help("YAML with one object or several, or - for stdin; flags come on top")
        .help_heading(MODES)
}

fn switch(name: &'static str, short: Option<char>, help: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).action(ArgAction::SetTrue).help(help).help_heading(MODES);
    match short {
        Some(short) => arg.short(short),
        None => arg,
    }
}

/// The first sentence of what the contract says, as one line.
fn first_sentence(file: &FileDescriptor, path: &[i32]) -> String {
    let text = crate::commands::api::comment_text(file, path);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('`', "'");
    let end = line.find(". ").unwrap_or(line.len());
    line.get(..end).unwrap_or(&line).trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_flag_has_names_of_its_own_and_says_what_it_is_for() {
        for kind in kinds() {
            let mut names = HashSet::new();
            for flag in flags(kind) {
                for name in flag.short.iter().chain([&flag.long]) {
                    assert!(names.insert(name.clone()), "{} --{name}", kind.word);
                }
                let arg = argument(kind, Verb::Show, &flag, false);
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{} --{}", kind.word, flag.long);
            }
        }
    }

    #[test]
    fn an_instance_has_a_history_and_a_way_back() {
        let parse = |words: &str| {
            let root = <Object as clap::Subcommand>::augment_subcommands(clap::Command::new("x"));
            let words = ["x"].into_iter().chain(words.split(' '));
            let matches = root.try_get_matches_from(words).map_err(|error| error.to_string())?;
            <Object as clap::FromArgMatches>::from_arg_matches(&matches)
                .map_err(|error| error.to_string())
        };
        let action = |words: &str| parse(words).map(|object| object.action);
        assert_eq!(action("appinst history --appname a"), Ok(Action::History));
        assert_eq!(action("appinst rollback --appname a"), Ok(Action::Rollback(0)));
        let chosen = parse("appinst rollback --appname a --to-revision 3 --dry-run").unwrap();
        assert_eq!((chosen.action, chosen.args.dry_run), (Action::Rollback(3), true));
        assert!(!chosen.args.names_nothing());
        assert!(action("appinst rollback --to-revision 0").is_err());
        assert!(action("app rollback --appname a").is_err());
        let kind = catalog::kind("appinst").unwrap();
        assert!(flags(kind).iter().all(|flag| !flag.leaf.name.starts_with("pinned_app")));
    }

    #[test]
    fn names_are_those_of_the_original() {
        let names = |word: &str| {
            let all = flags(catalog::kind(word).unwrap()).into_iter();
            let keys = all.filter(|flag| flag.leaf.name.starts_with("key."));
            keys.map(|flag| format!("{}={}", flag.name(), flag.long)).collect::<Vec<_>>()
        };
        assert_eq!(
            names("app"),
            ["developer=key-developerkey-name", "appname=key-name", "appvers=key-version"]
        );
        assert_eq!(
            names("appinst"),
            [
                "developer=key-appkey-developerkey-name",
                "appname=key-appkey-name",
                "appvers=key-appkey-version",
                "cluster=key-clusterinstkey-clusterkey-name",
                "operator=key-clusterinstkey-cloudletkey-operatorkey-name",
                "cloudlet=key-clusterinstkey-cloudletkey-name",
                "clusterdeveloper=key-clusterinstkey-developer"
            ]
        );
        assert_eq!(names("cloudletinfo"), ["operator=key-operatorkey-name", "name=key-name"]);
        assert_eq!(names("controller"), ["addr=key-addr"]);
        let node = ["name=key-name", "nodetype=key-nodetype"];
        assert_eq!(names("node")[..2], node);
    }

    #[test]
    fn a_bare_name_is_described_by_what_it_names() {
        let kind = catalog::kind("app").unwrap();
        let flag = flags(kind).into_iter().find(|flag| flag.name() == "defaultflavor").unwrap();
        let help = argument(kind, Verb::Create, &flag, false).get_help().unwrap().to_string();
        assert_eq!(help, "Size of an instance that names no flavor of its own");
    }
}
