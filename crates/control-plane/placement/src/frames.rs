//! Encoded orders, shared by all receiving streams.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use outrigger_grpc::frame::{PREFIX, Prefix};
use outrigger_wire::placement::v1::{Host, PlacementOrder, PlacementTable, PlacementTables};
use prost::Message;

use crate::dissemination::Phase;

/// Fields that only our sidecars understand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The term in which actors are handed over, or 0.
    pub(crate) handover: u64,
    /// The leader starts with a pause.
    pub(crate) settles: bool,
}

/// An order without a table, as a gRPC message.
pub(crate) fn order(phase: Phase, version: u64, marks: Marks) -> Bytes {
    message(phase, version, marks, PlacementOrder::default())
}

/// The `update` order with a table of these hosts; of two with the same name the later one counts. `leaving`:
/// hosts of the previous table.
pub(crate) fn update<'a>(
    version: u64,
    marks: Marks,
    replication_factor: i64,
    hosts: impl Iterator<Item = &'a Arc<Host>>,
    leaving: impl Iterator<Item = &'a str>,
) -> Bytes {
    let mut entries: HashMap<String, PlacementTable> = HashMap::new();
    for host in hosts {
        // Fields not needed in each entry stay empty.
        let entry = Host {
            name: host.name.clone(),
            port: host.port,
            id: host.id.clone(),
            namespace: host.namespace.clone(),
            api_level: host.api_level,
            ..Host::default()
        };
        for entity in &host.entities {
            let table = match entries.get_mut(entity) {
                Some(table) => table,
                None => entries.entry(entity.clone()).or_default(),
            };
            table.load_map.insert(host.name.clone(), entry.clone());
        }
    }
    let tables = PlacementTables {
        entries,
        version: version.to_string(),
        replication_factor,
        ..PlacementTables::default()
    };
    let order = PlacementOrder {
        tables: Some(tables),
        leaving: match marks.handover {
            0 => Vec::new(),
            _ => leaving.map(str::to_owned).collect(),
        },
        ..PlacementOrder::default()
    };
    message(Phase::Update, version, marks, order)
}

fn message(phase: Phase, version: u64, marks: Marks, order: PlacementOrder) -> Bytes {
    let operation = match phase {
        Phase::Lock => "lock",
        Phase::Update => "update",
        Phase::Unlock => "unlock",
    };
    let order = PlacementOrder {
        operation: operation.to_owned(),
        version,
        handover: marks.handover,
        settles: marks.settles,
        ..order
    };
    let length = order.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    // The table size limit is far below 4 GiB.
    frame.put_slice(&Prefix::write(length).unwrap_or_default());
    order.encode_raw(&mut frame);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_lists_hosts_by_type() {
        let host = |name: &str, id: &str, entities: &[&str]| {
            Arc::new(Host {
                name: name.to_owned(),
                id: id.to_owned(),
                entities: entities.iter().map(|&entity| entity.to_owned()).collect(),
                ..Host::default()
            })
        };
        let hosts = [
            host("h1", "a", &["s", "t"]),
            host("h2", "b", &["t"]),
            host("h2", "c", &["t"]),
        ];
        let frame = update(7, Marks::default(), 100, hosts.iter(), std::iter::once("h3"));
        assert_eq!(frame[..PREFIX], Prefix::write(frame.len() - PREFIX).unwrap());
        let order = PlacementOrder::decode(&frame[PREFIX..]).unwrap();
        assert_eq!((order.operation.as_str(), order.version), ("update", 7));
        let ours = (order.handover, order.leaving.len(), order.settles);
        assert_eq!(ours, (0, 0, false), "as Dapr writes it");
        let marks = Marks {
            handover: 5,
            settles: true,
        };
        let handed = update(7, marks, 100, hosts.iter(), std::iter::once("h3"));
        let handed = PlacementOrder::decode(&handed[PREFIX..]).unwrap();
        assert_eq!((handed.handover, handed.settles), (5, true));
        assert_eq!(handed.leaving, ["h3"]);
        let tables = order.tables.unwrap();
        assert_eq!((tables.version.as_str(), tables.replication_factor), ("7", 100));
        assert_eq!(tables.entries["s"].load_map.len(), 1);
        let of_t = &tables.entries["t"].load_map;
        assert_eq!((of_t["h1"].id.as_str(), of_t["h2"].id.as_str()), ("a", "c"));
    }

    #[test]
    fn orders_name_their_phase() {
        for (phase, name) in [(Phase::Lock, "lock"), (Phase::Unlock, "unlock")] {
            let frame = order(phase, 3, Marks::default());
            let order = PlacementOrder::decode(&frame[PREFIX..]).unwrap();
            assert_eq!(
                (order.operation.as_str(), order.version, order.tables),
                (name, 3, None)
            );
        }
    }
}
