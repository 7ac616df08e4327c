//! Which kinds of objects there are, and what can be done with each.

use std::ffi::OsString;
use std::sync::LazyLock;

use prost_reflect::MessageDescriptor;
use selvage_api::{Method, methods};

/// Action on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Create,
    Update,
    Delete,
    Show,
}

impl Verb {
    pub(crate) const ALL: [Self; 4] = [Self::Create, Self::Update, Self::Delete, Self::Show];

    /// Name on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Show => "show",
        }
    }

    /// Prefixes of the methods that do it.
    fn prefixes(self) -> &'static [&'static str] {
        match self {
            Self::Create => &["Create", "Inject"],
            Self::Update => &["Update", "Inject"],
            Self::Delete => &["Delete", "Evict"],
            Self::Show => &["Show"],
        }
    }
}

/// A kind of object.
#[derive(Debug)]
pub(crate) struct Kind {
    /// As in the contract: `AppInst`.
    pub(crate) name: String,
    /// On the command line and in files: `appinst`.
    pub(crate) word: String,
    pub(crate) plural: String,
    pub(crate) message: MessageDescriptor,
    methods: [Option<&'static Method>; 4],
}

/// Before what refers to it comes what is referred to.
const ORDER: &[&str] = &[
    "Flavor",
    "Operator",
    "Developer",
    "Cloudlet",
    "CloudletInfo",
    "Cluster",
    "App",
    "ClusterInst",
    "AppInst",
];

/// Fields that the server fills; what a client sends there has no effect.
/// `crm_override` is no field of the object but a word about one call.
const SERVER_SET: &[(&str, &[&str])] = &[
    (
        "AppInst",
        &[
            "cloudlet_loc",
            "liveness",
            "mapped_ports",
            "state",
            "errors",
            "runtime_info",
            "created_at",
            "size",
            "volumes_gb",
            "revision",
            "pinned_app",
            "progress",
            "crm_override",
        ],
    ),
    (
        "ClusterInst",
        &[
            "state",
            "errors",
            "allocated_ip",
            "liveness",
            "auto",
            "node_flavor",
            "size",
            "progress",
            "crm_override",
        ],
    ),
    ("Cluster", &["auto"]),
    ("CloudletInfo", &["notify_id", "controller"]),
];

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let mut kinds: Vec<Kind> = methods().iter().filter_map(Kind::shown_by).collect();
    kinds.sort_by_key(|kind| (kind.order().unwrap_or(usize::MAX), kind.name.clone()));
    kinds
});

/// All kinds, in the order in which they are created.
pub(crate) fn kinds() -> &'static [Kind] {
    &KINDS
}

/// The kind of a word: its name or plural, whatever its case.
pub(crate) fn kind(word: &str) -> Option<&'static Kind> {
    let word = super::scalar::normal(word);
    // The original's data sets call them so.
    let word = match word.as_str() {
        "applications" | "application" => "apps".to_owned(),
        "appinstances" | "appinstance" => "appinsts".to_owned(),
        "clusterinstances" | "clusterinstance" => "clusterinsts".to_owned(),
        _ => word,
    };
    kinds().iter().find(|kind| kind.word == word || kind.plural == word)
}

/// The arguments of a command line on which `controller show` and `node show`
/// mean the objects: without a verb the two words run daemons.
pub fn meaning_objects(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let shows = Verb::Show.word();
    let at = args.windows(2).position(|pair| {
        let word = pair[0].to_str().and_then(kind).filter(|kind| pair[0] == kind.word.as_str());
        word.is_some_and(|kind| kind.command() != kind.word) && pair[1] == shows
    });
    if let Some(word) = at.and_then(|at| args.get_mut(at)) {
        word.push("s");
    }
    args
}

impl Kind {
    /// The kind that a method shows: `ShowX` of an X that has a key.
    fn shown_by(method: &'static Method) -> Option<Self> {
        let name = method.name.strip_prefix("Show")?;
        let message = &method.output;
        if method.package != "edgeproto" || message.name() != name {
            return None;
        }
        message.get_field_by_name("key")?;
        let word = name.to_lowercase();
        let plural = if word.ends_with('s') { word.clone() } else { format!("{word}s") };
        let find = |verb: Verb| {
            let mut prefixes = verb.prefixes().iter();
            prefixes.find_map(|prefix| {
                let path = format!("/{}/{prefix}{name}", method.service);
                selvage_api::method(&path)
            })
        };
        let methods = Verb::ALL.map(find);
        Some(Self { name: name.to_owned(), word, plural, message: message.clone(), methods })
    }

    /// The method that does it, if there is one.
    pub(crate) fn method(&self, verb: Verb) -> Option<&'static Method> {
        let at = Verb::ALL.iter().position(|each| *each == verb)?;
        self.methods.get(at).copied().flatten()
    }

    /// Its place in the order of creation; none for kinds that are shown only.
    pub(crate) fn order(&self) -> Option<usize> {
        ORDER.iter().position(|name| *name == self.name)
    }

    /// Its name on the command line. Two words there mean daemons already.
    pub(crate) fn command(&self) -> &str {
        if matches!(self.word.as_str(), "controller" | "node") { &self.plural } else { &self.word }
    }

    /// Returns whether the server fills the field of this dotted name.
    pub(crate) fn is_server_set(&self, field: &str) -> bool {
        let first = field.split('.').next().unwrap_or(field);
        SERVER_SET.iter().any(|(name, fields)| *name == self.name && fields.contains(&first))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_kind_has_the_verbs_of_its_service() {
        let verbs = |word: &str| {
            let kind = kind(word).unwrap();
            let all = Verb::ALL.iter().filter_map(|verb| kind.method(*verb));
            all.map(|method| method.name.as_str()).collect::<Vec<_>>().join(" ")
        };
        for name in ["App", "AppInst", "Cloudlet", "Cluster", "ClusterInst", "Flavor", "Developer"]
        {
            assert_eq!(verbs(name), format!("Create{name} Update{name} Delete{name} Show{name}"));
        }
        assert_eq!(
            verbs("cloudletinfo"),
            "InjectCloudletInfo InjectCloudletInfo EvictCloudletInfo ShowCloudletInfo"
        );
        for name in ["Node", "Controller", "CloudletRefs", "ClusterRefs", "AppInstInfo"] {
            assert_eq!(verbs(name), format!("Show{name}"));
        }
    }

    #[test]
    fn words_of_the_data_sets_are_known() {
        for word in ["apps", "App", "appinstances", "AppInsts", "cluster_insts", "cloudletrefs"] {
            assert!(kind(word).is_some(), "{word}");
        }
        assert!(kind("appz").is_none());
        assert_eq!(kind("node").unwrap().command(), "nodes");
    }

    #[test]
    fn daemons_have_objects_of_their_name() {
        let meaning = |line: &str| {
            let args = line.split(' ').map(OsString::from);
            let args = meaning_objects(args).into_iter().map(|arg| arg.into_string().unwrap());
            args.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(meaning("selvage controller show"), "selvage controllers show");
        assert_eq!(
            meaning("selvage -o json node show --name x"),
            "selvage -o json nodes show --name x"
        );
        for same in [
            "selvage",
            "selvage node",
            "selvage controller --port 0",
            "selvage app show --name node",
            "selvage nodes show",
            "selvage app show",
        ] {
            assert_eq!(meaning(same), same);
        }
    }

    #[test]
    fn what_is_written_by_hand_names_real_things() {
        for name in ORDER {
            assert!(kind(name).unwrap().method(Verb::Create).is_some(), "{name}");
        }
        for (name, fields) in SERVER_SET {
            for field in *fields {
                assert!(kind(name).unwrap().message.get_field_by_name(field).is_some(), "{field}");
            }
        }
    }
}
