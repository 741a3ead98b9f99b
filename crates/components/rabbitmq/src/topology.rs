use lapin::{
    Channel, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use outrigger_component::{
    Error, Result,
    pubsub::{Subscribe, flag, property},
};

use super::{
    declaration::Declaration,
    link::{Link, call},
    settings::Options,
    short,
};

/// A queue and its bindings.
pub(super) struct Queue {
    pub(super) topic: ShortString,
    pub(super) name: ShortString,
    /// Exchange and queue of dead letters.
    dead: Option<(ShortString, ShortString)>,
    routing_keys: Vec<ShortString>,
    arguments: FieldTable,
    limits: FieldTable,
    one_consumer: bool,
}

fn number(metadata: &outrigger_component::Pairs, name: &str) -> Result<Option<i64>> {
    let Some(text) = property(metadata, name) else {
        return Ok(None);
    };
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.map(Some).ok_or_else(|| {
        let text =
            format!("invalid value {text:?} for the subscription's {name}: a whole number is expected");
        Error::invalid_request(text)
    })
}

impl Queue {
    pub(super) fn new(request: &Subscribe, options: &Options) -> Result<Self> {
        let given = |name: &str| property(&request.metadata, name);
        let default = format!("{}-{}", options.consumer, request.topic);
        let name = given("queueName").unwrap_or(&default);
        let kind = given("queueType").unwrap_or("classic");
        if !["classic", "quorum"].contains(&kind) {
            let text =
                format!("invalid value {kind:?} for the subscription's queueType: use classic or quorum");
            return Err(Error::invalid_request(text));
        }
        let mut limits = FieldTable::default();
        for (argument, most) in [
            ("x-max-length", options.max_length),
            ("x-max-length-bytes", options.max_length_bytes),
        ] {
            if let Some(most) = most {
                limits.insert(argument.into(), AMQPValue::LongLongInt(most));
            }
        }
        // The dead-letter queue has only the component's limits.
        let mut arguments = limits.clone();
        for (argument, most) in [
            ("x-max-length", number(&request.metadata, "maxLen")?),
            ("x-max-length-bytes", number(&request.metadata, "maxLenBytes")?),
            ("x-max-priority", number(&request.metadata, "maxPriority")?),
        ] {
            if let Some(most) = most {
                arguments.insert(argument.into(), AMQPValue::LongLongInt(most));
            }
        }
        arguments.insert("x-queue-type".into(), text(kind));
        let one_consumer = flag(&request.metadata, "singleActiveConsumer") == Some(true);
        if one_consumer {
            arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        }
        let mut dead = None;
        if options.dead_letter {
            let exchange = short(&format!("dlx-{name}"), "exchange")?;
            arguments.insert("x-dead-letter-exchange".into(), text(exchange.as_str()));
            dead = Some((exchange, short(&format!("dlq-{name}"), "queue")?));
        }
        let keys = given("routingKey").unwrap_or_default().split(',');
        Ok(Self {
            topic: short(&request.topic, "topic")?,
            name: short(name, "queue")?,
            dead,
            routing_keys: keys.map(|key| short(key, "routing key")).collect::<Result<_>>()?,
            arguments,
            limits,
            one_consumer,
        })
    }

    /// Whether the queue has a single active consumer; resubscribing would give the role to another sidecar.
    pub(super) fn has_one_consumer(&self) -> bool {
        self.one_consumer
    }

    /// Declares the queue and its exchanges; returns the open channel. Existing exchanges must have the same
    /// properties. An existing queue with other arguments is used if suitable.
    pub(super) async fn declare(&self, link: &Link, options: &Options) -> Result<Channel> {
        let mut channel = link.channel().await?;
        call(exchange(&channel, &self.topic, &options.exchange_kind, options)).await?;
        if let Some((dead_exchange, dead_queue)) = &self.dead {
            call(exchange(&channel, dead_exchange, &ExchangeKind::Fanout, options)).await?;
            let mut arguments = self.limits.clone();
            arguments.insert("x-queue-mode".into(), text("lazy"));
            let dead = Declaration::new(dead_queue, true, options, arguments);
            channel = dead.make(channel, link).await?;
            call(bind(&channel, dead_queue, dead_exchange, &ShortString::default())).await?;
        }
        let queue = Declaration::new(&self.name, options.durable, options, self.arguments.clone());
        channel = queue.make(channel, link).await?;
        for key in &self.routing_keys {
            call(bind(&channel, &self.name, &self.topic, key)).await?;
        }
        Ok(channel)
    }
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Declares an exchange with the configured properties.
pub(super) async fn exchange(
    channel: &Channel,
    name: &ShortString,
    kind: &ExchangeKind,
    options: &Options,
) -> lapin::Result<()> {
    let declare = ExchangeDeclareOptions {
        durable: options.durable,
        auto_delete: options.delete_when_unused,
        ..ExchangeDeclareOptions::default()
    };
    let declaring = channel.exchange_declare(name.clone(), kind.clone(), declare, FieldTable::default());
    declaring.await
}

async fn bind(
    channel: &Channel,
    queue: &ShortString,
    exchange: &ShortString,
    key: &ShortString,
) -> lapin::Result<()> {
    let (queue, exchange, key) = (queue.clone(), exchange.clone(), key.clone());
    let binding = channel.queue_bind(
        queue,
        exchange,
        key,
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    binding.await
}
