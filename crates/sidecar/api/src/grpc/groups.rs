//! Groups the methods of `dapr.proto.runtime.v1.Dapr` as API lists name them; each block lists its own.

use super::dapr::{ALL, OWN};

/// Methods that are allowed and denied together.
pub(super) struct Group {
    /// Name in `spec.api` of a Configuration.
    name: &'static str,
    /// Version of the group, such as `v1alpha1`; its methods may have another.
    version: &'static str,
    methods: &'static [&'static str],
}

impl Group {
    pub(super) const fn of(
        name: &'static str,
        version: &'static str,
        methods: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            version,
            methods,
        }
    }
}

/// The names of all groups.
pub(crate) fn groups() -> impl Iterator<Item = &'static str> {
    let all = ALL.iter().copied().chain([OWN]).flatten();
    all.map(|group| group.name)
}

/// The methods of a group by name and version; empty if unknown.
pub fn methods(name: &str, version: &str) -> &'static [&'static str] {
    let mut all = ALL.iter().copied().chain([OWN]).flatten();
    let found = all.find(|group| group.name == name && group.version == version);
    found.map_or(&[], |group| group.methods)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use prost::Message;
    use prost_reflect::prost_types::{FileDescriptorSet, MethodDescriptorProto};

    use super::*;
    use crate::grpc::STREAMING;

    /// The methods of the service from its descriptor.
    fn described() -> Vec<MethodDescriptorProto> {
        let all = FileDescriptorSet::decode(outrigger_wire::FILE_DESCRIPTOR_SET).unwrap();
        let mut files = all
            .file
            .into_iter()
            .filter(|file| file.package() == "dapr.proto.runtime.v1");
        let service =
            files.find_map(|file| file.service.into_iter().find(|service| service.name() == "Dapr"));
        service.unwrap().method
    }

    #[test]
    fn each_method_is_in_one_group() {
        let mut listed = BTreeMap::new();
        for method in ALL
            .iter()
            .copied()
            .chain([OWN])
            .flatten()
            .flat_map(|group| group.methods)
        {
            *listed.entry(*method).or_insert(0) += 1;
        }
        let described = described();
        let wanted: BTreeMap<_, _> = described.iter().map(|method| (method.name(), 1)).collect();
        assert_eq!(listed, wanted);
    }

    #[test]
    fn group_names_are_unique() {
        let groups = || {
            ALL.iter()
                .copied()
                .chain([OWN])
                .flatten()
                .map(|group| (group.name, group.version))
        };
        let different: BTreeSet<_> = groups().collect();
        assert_eq!(different.len(), groups().count());
        assert_eq!(methods("unlock", "v1alpha1"), ["UnlockAlpha1"]);
        assert!(methods("unlock", "v1").is_empty() && methods("nonsense", "v1").is_empty());
    }

    #[test]
    fn streaming_matches_descriptor() {
        let described = described();
        let streams = described
            .iter()
            .filter(|method| method.server_streaming() || method.client_streaming());
        let mut streams: Vec<_> = streams.map(|method| method.name()).collect();
        streams.sort_unstable();
        assert_eq!(streams, STREAMING);
    }
}
