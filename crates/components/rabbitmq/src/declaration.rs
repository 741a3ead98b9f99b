//! Declares a queue that may exist with other arguments.

use std::fmt;

use lapin::{
    Channel, ErrorKind,
    options::QueueDeclareOptions,
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
};
use outrigger_component::{Error, Kind, Result};

use super::{
    LOG,
    link::{Link, call, failure},
    settings::Options,
};

/// Maximum declarations of a queue: RabbitMQ reports one difference at a time.
const MAX_DIFFERENCES: usize = 16;

/// Component properties by queue property or argument.
const SETTINGS: [(&str, &str); 8] = [
    ("durable", "durable"),
    ("auto_delete", "deletedWhenUnused"),
    (ONE_CONSUMER, "singleActiveConsumer"),
    ("x-dead-letter-exchange", "enableDeadLetter"),
    ("x-max-length", "maxLen"),
    ("x-max-length-bytes", "maxLenBytes"),
    ("x-max-priority", "maxPriority"),
    // A queue of another type needs another name.
    (TYPE, "queueName"),
];
const TYPE: &str = "x-queue-type";
const ONE_CONSUMER: &str = "x-single-active-consumer";
const MODE: &str = "x-queue-mode";
const AUTO_DELETE: &str = "auto-delete";
const NON_DURABLE: &str = "non-durable";

/// Parameters of a queue declaration.
pub(super) struct Declaration {
    name: ShortString,
    durable: bool,
    auto_delete: bool,
    arguments: FieldTable,
}

/// Why RabbitMQ rejected a declaration.
#[derive(Debug, PartialEq, Eq)]
enum Objection<'t> {
    /// The queue exists with another value, or without one.
    Differs {
        argument: &'t str,
        current: Option<Current<'t>>,
    },
    /// This queue type does not support the argument or property.
    Invalid(&'t str),
}

/// A value of the existing queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Current<'t> {
    value: &'t str,
    /// RabbitMQ's type name; empty for properties.
    kind: &'t str,
}

impl fmt::Display for Objection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs { argument, current } => {
                let current = current.map_or("unset", |current| current.value);
                write!(f, "exists with {argument} {current}")
            }
            Self::Invalid(property @ (AUTO_DELETE | NON_DURABLE)) => write!(f, "cannot be {property}"),
            Self::Invalid(argument) => write!(f, "cannot have {argument}"),
        }
    }
}

impl<'t> Objection<'t> {
    /// Parses the text of a `PRECONDITION_FAILED`.
    fn read(text: &'t str) -> Option<Self> {
        let quoted = |text: &'t str| text.strip_prefix('\'')?.split('\'').next();
        let after = |mark| text.split_once(mark).map(|(_, rest)| rest);
        if let Some(rest) = after("inequivalent arg ") {
            let (_, current) = rest.rsplit_once(" but current is ")?;
            let current = current.strip_prefix("the value ").unwrap_or(current);
            let (value, kind) = current.split_once(" of type ").unwrap_or((current, ""));
            return Some(Self::Differs {
                argument: quoted(rest)?,
                current: quoted(value).map(|value| Current {
                    value,
                    kind: quoted(kind).unwrap_or_default(),
                }),
            });
        }
        let invalid = after("invalid property ").or_else(|| after("invalid arg "))?;
        quoted(invalid).map(Self::Invalid)
    }
}

impl Current<'_> {
    fn as_argument(self) -> AMQPValue {
        match (self.kind, self.value.parse()) {
            ("bool", _) => AMQPValue::Boolean(self.value == "true"),
            ("longstr", _) | (_, Err(_)) => AMQPValue::LongString(self.value.into()),
            (_, Ok(number)) => AMQPValue::LongLongInt(number),
        }
    }
}

impl Declaration {
    pub(super) fn new(name: &ShortString, durable: bool, options: &Options, arguments: FieldTable) -> Self {
        Self {
            name: name.clone(),
            durable,
            auto_delete: options.delete_when_unused,
            arguments,
        }
    }

    /// Declares the queue. RabbitMQ closes the channel with each rejection; returns the final open channel.
    pub(super) async fn make(mut self, mut channel: Channel, link: &Link) -> Result<Channel> {
        for _ in 0..MAX_DIFFERENCES {
            let declare = QueueDeclareOptions {
                durable: self.durable,
                auto_delete: self.auto_delete,
                ..QueueDeclareOptions::default()
            };
            let declaring = channel.queue_declare(self.name.clone(), declare, self.arguments.clone());
            let Err(error) = call(async { Ok(declaring.await) }).await? else {
                return Ok(channel);
            };
            let text = objection(&error).ok_or_else(|| failure(&error))?;
            let objection = Objection::read(text).ok_or_else(|| failure(&error))?;
            self.adapt_to(&objection, text)?;
            channel = link.channel().await?;
        }
        let text = format!("RabbitMQ rejects the declaration of the queue {}", self.name);
        Err(Error::new(Kind::Configuration, text))
    }

    /// Adapts the declaration to the existing queue, if the subscription can use that.
    ///
    /// # Errors
    /// `Configuration`: the queue is unusable.
    fn adapt_to(&mut self, objection: &Objection<'_>, text: &str) -> Result<()> {
        match *objection {
            // Such a queue keeps at least as much.
            Objection::Invalid(AUTO_DELETE) => self.auto_delete = false,
            Objection::Invalid(NON_DURABLE) => self.durable = true,
            Objection::Invalid(MODE) => self.set(MODE, None),
            Objection::Differs {
                argument: "auto_delete",
                current: Some(Current { value: "false", .. }),
            } => self.auto_delete = false,
            Objection::Differs {
                argument: "durable",
                current: Some(Current { value: "true", .. }),
            } => self.durable = true,
            Objection::Differs { argument, current } if self.can_adapt(argument, current) => {
                self.set(argument, current);
            }
            Objection::Differs { argument, .. } => {
                let text = format!(
                    "the queue {} {objection}: delete the queue, or change {} of the component or of the subscription ({text})",
                    self.name,
                    setting(argument)
                );
                return Err(Error::new(Kind::Configuration, text));
            }
            Objection::Invalid(argument) => {
                let text = format!(
                    "the queue {} {objection}: remove {}, or change queueType ({text})",
                    self.name,
                    setting(argument)
                );
                return Err(Error::new(Kind::Configuration, text));
            }
        }
        tracing::warn!(target: LOG, "the queue {} {objection}; using it as it is", self.name);
        Ok(())
    }

    /// Whether the subscription can use a queue with this argument value: no setting contradicts it, or the
    /// argument only concerns storage. Streams are excluded, because their consumers get only later messages.
    fn can_adapt(&self, argument: &str, current: Option<Current<'_>>) -> bool {
        let is_stream = argument == TYPE && current.is_some_and(|current| current.value == "stream");
        let is_stored = [TYPE, MODE].contains(&argument);
        let is_asked_for = self.arguments.inner().contains_key(argument);
        !is_stream && (is_stored || argument.starts_with("x-") && argument != ONE_CONSUMER && !is_asked_for)
    }

    fn set(&mut self, argument: &str, value: Option<Current<'_>>) {
        let mut arguments = FieldTable::default();
        for (name, value) in self.arguments.inner() {
            if name.as_str() != argument {
                arguments.insert(name.clone(), value.clone());
            }
        }
        if let Some(value) = value {
            arguments.insert(argument.into(), value.as_argument());
        }
        self.arguments = arguments;
    }
}

fn setting(argument: &str) -> &str {
    let mut settings = SETTINGS.iter();
    let found = settings.find(|(name, _)| *name == argument);
    found.map_or(argument, |(_, setting)| setting)
}

/// The text of a `PRECONDITION_FAILED`.
fn objection(error: &lapin::Error) -> Option<&str> {
    match error.kind() {
        ErrorKind::ProtocolError(amqp)
            if *amqp.kind() == AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) =>
        {
            Some(amqp.get_message().as_str())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differs<'t>(argument: &'t str, value: &'t str, kind: &'t str) -> Option<Objection<'t>> {
        let current = Some(Current { value, kind });
        Some(Objection::Differs { argument, current })
    }

    #[test]
    fn parses_broker_rejections() {
        let start = "PRECONDITION_FAILED - ";
        for (text, expected) in [
            (
                "inequivalent arg 'x-queue-type' for queue 'a' in vhost '/': received the value 'classic' of type 'longstr' but \
                 current is the value 'quorum' of type 'longstr'",
                differs("x-queue-type", "quorum", "longstr"),
            ),
            (
                "inequivalent arg 'durable' for queue 'a' in vhost '/': received 'false' but current is 'true'",
                differs("durable", "true", ""),
            ),
            (
                "inequivalent arg 'x-queue-mode' for queue ' but current is ' in vhost '/': received the value 'lazy' of type \
                 'longstr' but current is none",
                Some(Objection::Differs {
                    argument: MODE,
                    current: None,
                }),
            ),
            (
                "invalid property 'auto-delete' for queue 'a' in vhost '/'",
                Some(Objection::Invalid("auto-delete")),
            ),
            (
                "invalid arg 'x-max-priority' for queue 'a' in vhost '/' of queue type rabbit_quorum_queue",
                Some(Objection::Invalid("x-max-priority")),
            ),
            ("something else", None),
        ] {
            assert_eq!(Objection::read(&format!("{start}{text}")), expected, "{text}");
        }
    }

    #[test]
    fn logs_differences_and_rejects_streams() {
        let declared = || {
            let mut arguments = FieldTable::default();
            for name in [TYPE, MODE] {
                arguments.insert(name.into(), AMQPValue::LongString("x".into()));
            }
            Declaration {
                name: "q".into(),
                durable: false,
                auto_delete: true,
                arguments,
            }
        };
        let lines = outrigger_testing::log_lines::Lines::new();
        for (objection, logged) in [
            (Some(Objection::Invalid(AUTO_DELETE)), "cannot be auto-delete"),
            (Some(Objection::Invalid(NON_DURABLE)), "cannot be non-durable"),
            (Some(Objection::Invalid(MODE)), "cannot have x-queue-mode"),
            (
                differs("auto_delete", "false", ""),
                "exists with auto_delete false",
            ),
            (differs("durable", "true", ""), "exists with durable true"),
            (
                differs(TYPE, "quorum", "longstr"),
                "exists with x-queue-type quorum",
            ),
            (differs("x-expires", "5", "long"), "exists with x-expires 5"),
        ] {
            declared().adapt_to(&objection.unwrap(), "").unwrap();
            let logged = format!("WARN the queue q {logged}; using it as it is");
            let taken = lines.take(LOG, tracing::Level::WARN);
            assert_eq!(
                taken.iter().map(ToString::to_string).collect::<Vec<_>>(),
                [logged]
            );
        }
        let stream = differs(TYPE, "stream", "longstr").unwrap();
        let error = declared().adapt_to(&stream, "").unwrap_err();
        assert_eq!(error.kind(), Kind::Configuration);
        assert!(error.to_string().contains("queueName"), "{error}");
        assert_eq!(lines.take(LOG, tracing::Level::WARN), []);
    }
}
