//! The records of this sidecar, and its replies to queries.

use std::net::IpAddr;

use super::{
    message::{Data, Message, Question, Record, TYPE_ANY, TYPE_PTR, TYPE_SRV, TYPE_TXT},
    name::{Name, NameError},
};

/// TTL of service records in seconds.
const SERVICE_TTL: u32 = 3200;
/// TTL of address records in seconds (RFC 6762, 10).
const ADDRESS_TTL: u32 = 120;
/// Maximum TTL in seconds for plain DNS clients (RFC 6762, 6.7).
const LEGACY_TTL: u32 = 10;
/// Name that enumerates all services (RFC 6763, 9).
const ENUMERATION: &str = "_services._dns-sd._udp.local.";

/// One registered app instance.
#[derive(Debug, Clone)]
pub(super) struct Service {
    app_id: String,
    /// `APPID.local.`: the bare app ID is the service type.
    service: Name,
    /// `HOSTNAME:PID.APPID.local.`
    instance: Name,
    /// `HOSTNAME.local.`
    host: Name,
    enumeration: Name,
    ip: IpAddr,
    port: u16,
}

/// A reply to a query, and its destination.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) message: Message,
    /// Sent to the querier only.
    pub(super) unicast: bool,
}

impl Service {
    pub(super) fn new(
        app_id: &str,
        instance: &str,
        host: &str,
        ip: IpAddr,
        port: u16,
    ) -> Result<Self, NameError> {
        Ok(Self {
            app_id: app_id.to_owned(),
            service: Name::parse(&format!("{app_id}.local"))?,
            instance: Name::parse(&format!("{instance}.{app_id}.local"))?,
            host: Name::parse(&format!("{host}.local"))?,
            enumeration: Name::parse(ENUMERATION)?,
            ip,
            port,
        })
    }

    /// A probe for the instance name.
    pub(super) fn probe(&self) -> Message {
        Message {
            questions: vec![Question {
                name: self.instance.clone(),
                kind: TYPE_PTR,
                unicast: false,
            }],
            authorities: vec![self.srv(SERVICE_TTL, false), self.txt(SERVICE_TTL, false)],
            ..Message::default()
        }
    }

    /// An announcement of the instance.
    pub(super) fn announcement(&self) -> Message {
        Message {
            response: true,
            authoritative: true,
            answers: self.everything(SERVICE_TTL, ADDRESS_TTL, true),
            ..Message::default()
        }
    }

    /// A goodbye that withdraws every record.
    pub(super) fn goodbye(&self) -> Message {
        Message {
            response: true,
            authoritative: true,
            answers: self.everything(0, 0, true),
            ..Message::default()
        }
    }

    /// One reply per distinct question about this service. `legacy` marks a query that did not come from
    /// port 5353: its sender is a plain DNS client that receives unicast only.
    pub(super) fn answer(&self, query: &Message, legacy: bool) -> Vec<Reply> {
        // Records in the authority section make it a probe.
        if query.response || !query.authorities.is_empty() {
            return Vec::new();
        }
        let mut answered = Vec::new();
        let replies = query.questions.iter().filter_map(|question| {
            let mut message = self.records_for(question)?;
            let unicast = legacy || question.unicast;
            // There are three distinct replies, each by multicast or unicast: a packet gets each at most
            // once.
            if answered.contains(&(message.answers.clone(), unicast)) {
                return None;
            }
            answered.push((message.answers.clone(), unicast));
            if message.answers.iter().any(|answer| is_known(answer, query)) {
                return None;
            }
            message.id = query.id;
            if legacy {
                message.questions = vec![question.clone()];
                for record in message.answers.iter_mut().chain(&mut message.additionals) {
                    record.ttl = record.ttl.min(LEGACY_TTL);
                    record.flush = false;
                }
            }
            Some(Reply { message, unicast })
        });
        replies.collect()
    }

    fn records_for(&self, question: &Question) -> Option<Message> {
        let kind = question.kind;
        let (answers, additionals) = if question.name == self.service && is_one_of(kind, &[TYPE_PTR]) {
            (
                vec![self.ptr(SERVICE_TTL)],
                vec![
                    self.srv(SERVICE_TTL, false),
                    self.txt(SERVICE_TTL, false),
                    self.address(ADDRESS_TTL, false),
                ],
            )
        } else if question.name == self.instance && is_one_of(kind, &[TYPE_SRV, TYPE_TXT, TYPE_PTR]) {
            let mut answers = self.everything(SERVICE_TTL, ADDRESS_TTL, true);
            answers.iter_mut().for_each(|record| {
                record.flush &= matches!(record.data, Data::Srv { .. } | Data::Txt(_));
            });
            (answers, Vec::new())
        } else if question.name == self.enumeration && is_one_of(kind, &[TYPE_PTR]) {
            (vec![self.listing(SERVICE_TTL)], Vec::new())
        } else {
            return None;
        };
        Some(Message {
            response: true,
            authoritative: true,
            answers,
            additionals,
            ..Message::default()
        })
    }

    fn everything(&self, ttl: u32, address_ttl: u32, flush: bool) -> Vec<Record> {
        vec![
            self.srv(ttl, flush),
            self.txt(ttl, flush),
            self.ptr(ttl),
            self.listing(ttl),
            self.address(address_ttl, flush),
        ]
    }

    fn ptr(&self, ttl: u32) -> Record {
        record(&self.service, false, ttl, Data::Ptr(self.instance.clone()))
    }

    fn listing(&self, ttl: u32) -> Record {
        record(&self.enumeration, false, ttl, Data::Ptr(self.service.clone()))
    }

    fn srv(&self, ttl: u32, flush: bool) -> Record {
        let data = Data::Srv {
            priority: 0,
            weight: 0,
            port: self.port,
            target: self.host.clone(),
        };
        record(&self.instance, flush, ttl, data)
    }

    fn txt(&self, ttl: u32, flush: bool) -> Record {
        let data = Data::Txt(vec![self.app_id.clone().into_bytes()]);
        record(&self.instance, flush, ttl, data)
    }

    fn address(&self, ttl: u32, flush: bool) -> Record {
        let data = match self.ip {
            IpAddr::V4(ip) => Data::A(ip),
            IpAddr::V6(ip) => Data::Aaaa(ip),
        };
        record(&self.host, flush, ttl, data)
    }
}

fn record(name: &Name, flush: bool, ttl: u32, data: Data) -> Record {
    Record {
        name: name.clone(),
        flush,
        ttl,
        data,
    }
}

fn is_one_of(kind: u16, kinds: &[u16]) -> bool {
    kind == TYPE_ANY || kinds.contains(&kind)
}

/// Known-answer suppression (RFC 6762, 7.1): the querier knows this pointer for at least half its TTL.
fn is_known(answer: &Record, query: &Message) -> bool {
    matches!(answer.data, Data::Ptr(_))
        && query.answers.iter().any(|known| {
            known.name == answer.name && known.data == answer.data && known.ttl >= answer.ttl / 2
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Service {
        Service::new("orders", "box:7", "box", "10.0.0.7".parse().unwrap(), 50002).unwrap()
    }

    fn ask(name: &str, kind: u16, unicast: bool) -> Message {
        Message {
            id: 77,
            questions: vec![Question {
                name: Name::parse(name).unwrap(),
                kind,
                unicast,
            }],
            ..Message::default()
        }
    }

    fn kinds(records: &[Record]) -> Vec<u16> {
        records.iter().map(|record| record.data.kind()).collect()
    }

    #[test]
    fn browse_reply_is_complete() {
        let replies = service().answer(&ask("ORDERS.local", TYPE_PTR, false), false);
        let [reply] = &replies[..] else {
            panic!("one reply, not {replies:?}")
        };
        assert!(!reply.unicast);
        assert_eq!((reply.message.id, reply.message.authoritative), (77, true));
        assert!(reply.message.questions.is_empty());
        assert_eq!(kinds(&reply.message.answers), [TYPE_PTR]);
        assert_eq!(reply.message.answers[0].ttl, 3200);
        assert_eq!(kinds(&reply.message.additionals), [TYPE_SRV, TYPE_TXT, 1]);
        assert_eq!(reply.message.additionals[2].ttl, 120);
        assert_eq!(
            reply.message.additionals[1].data,
            Data::Txt(vec![b"orders".to_vec()])
        );
        assert!(reply.message.additionals.iter().all(|record| !record.flush));
    }

    #[test]
    fn flushes_only_srv_and_txt() {
        let replies = service().answer(&ask("box:7.orders.local", TYPE_SRV, true), false);
        assert!(replies[0].unicast);
        let answers = &replies[0].message.answers;
        assert_eq!(kinds(answers), [TYPE_SRV, TYPE_TXT, TYPE_PTR, TYPE_PTR, 1]);
        let flush: Vec<bool> = answers.iter().map(|record| record.flush).collect();
        assert_eq!(flush, [true, true, false, false, false]);
    }

    #[test]
    fn repeated_questions_get_one_reply() {
        let mut query = ask("orders.local", TYPE_PTR, false);
        let questions = [
            "orders.local",
            "box:7.orders.local",
            "_services._dns-sd._udp.local",
        ];
        for name in questions.into_iter().cycle().take(1_000) {
            for kind in [TYPE_PTR, TYPE_ANY] {
                query.questions.extend(ask(name, kind, false).questions);
                query.questions.extend(ask(name, kind, true).questions);
            }
        }
        let replies = service().answer(&query, false);
        assert_eq!(replies.len(), 6, "{replies:?}");
        assert_eq!(replies.iter().filter(|reply| reply.unicast).count(), 3);
    }

    #[test]
    fn suppresses_known_answers() {
        let service = service();
        let mut query = ask("orders.local", TYPE_PTR, false);
        query.answers.push(service.ptr(1599));
        assert_eq!(
            service.answer(&query, false).len(),
            1,
            "less than half its life left"
        );
        query.answers[0].ttl = 1600;
        assert!(service.answer(&query, false).is_empty());
    }

    #[test]
    fn ignores_other_services_and_probes() {
        let service = service();
        assert!(
            service
                .answer(&ask("payments.local", TYPE_PTR, false), false)
                .is_empty()
        );
        assert!(service.answer(&ask("orders.local", 1, false), false).is_empty());
        let mut probe = ask("orders.local", TYPE_PTR, false);
        probe.authorities.push(service.srv(1, false));
        assert!(service.answer(&probe, false).is_empty());
        assert!(service.answer(&service.announcement(), false).is_empty());
    }

    #[test]
    fn answers_plain_dns_clients() {
        let replies = service().answer(&ask("orders.local", TYPE_PTR, false), true);
        assert!(replies[0].unicast);
        assert_eq!(replies[0].message.questions.len(), 1);
        assert!(
            replies[0]
                .message
                .records()
                .all(|record| record.ttl <= 10 && !record.flush)
        );
    }

    #[test]
    fn goodbye_withdraws_all_records() {
        let goodbye = service().goodbye();
        assert_eq!(goodbye.answers.len(), 5);
        assert!(goodbye.answers.iter().all(|record| record.ttl == 0));
    }
}
