//! Messages that no client library writes.

use outrigger_components_testing::server::RabbitMq;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;

/// A publisher that writes raw frames.
struct Publisher(TcpStream);

fn short(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()][..], bytes].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

impl Publisher {
    async fn connect(rabbit: &RabbitMq) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", rabbit.port())).await.unwrap();
        let mut publisher = Self(stream);
        publisher.0.write_all(b"AMQP\0\0\x09\x01").await.unwrap();
        publisher.answer([10, 10]).await;
        let login = [
            &long(b"")[..],
            &short(b"PLAIN"),
            &long(b"\0guest\0guest"),
            &short(b"en_US"),
        ]
        .concat();
        publisher.call(0, [10, 11], &login, [10, 30]).await;
        // Nine channels, default frame size, no heartbeat.
        publisher
            .send(1, 0, &[0, 10, 0, 31, 0, 9, 0, 2, 0, 0, 0, 0])
            .await;
        publisher
            .call(0, [10, 40], &[&short(b"/")[..], &[0, 0]].concat(), [10, 41])
            .await;
        publisher.call(1, [20, 10], &[0], [20, 11]).await;
        // Enables confirms.
        publisher.call(1, [85, 10], &[0], [85, 11]).await;
        publisher
    }

    async fn send(&mut self, kind: u8, channel: u8, payload: &[u8]) {
        let frame = [&[kind, 0, channel][..], &long(payload), &[0xce]].concat();
        self.0.write_all(&frame).await.unwrap();
    }

    /// Waits for a method by class and method id.
    async fn answer(&mut self, expected: [u8; 2]) {
        let mut head = [0; 7];
        self.0.read_exact(&mut head).await.unwrap();
        let size = u32::from_be_bytes(head[3..].try_into().unwrap());
        let mut payload = vec![0; usize::try_from(size).unwrap() + 1];
        self.0.read_exact(&mut payload).await.unwrap();
        assert_eq!(
            [payload[1], payload[3]],
            expected,
            "{}",
            String::from_utf8_lossy(&payload)
        );
    }

    async fn call(&mut self, channel: u8, [class, method]: [u8; 2], arguments: &[u8], answer: [u8; 2]) {
        let payload = [&[0, class, 0, method][..], arguments].concat();
        self.send(1, channel, &payload).await;
        self.answer(answer).await;
    }

    /// Publishes a message and waits for the confirmation. `headers` is an encoded table.
    async fn publish(&mut self, exchange: &str, key: &[u8], headers: &[u8], data: &str) {
        let method = [
            &[0, 60, 0, 40, 0, 0][..],
            &short(exchange.as_bytes()),
            &short(key),
            &[0],
        ]
        .concat();
        self.send(1, 1, &method).await;
        let size = u64::try_from(data.len()).unwrap().to_be_bytes();
        let header = [&[0, 60, 0, 0][..], &size, &(1_u16 << 13).to_be_bytes(), headers].concat();
        self.send(2, 1, &header).await;
        self.send(3, 1, data.as_bytes()).await;
        self.answer([60, 80]).await;
    }
}

/// A table with nested tables or arrays.
fn nested(kind: u8, levels: usize) -> Vec<u8> {
    let inner = (1..levels).fold(long(b""), |inner, _| match kind {
        b'F' => long(&[&[1, b'a', b'F'][..], &inner].concat()),
        kind => long(&[&[kind][..], &inner].concat()),
    });
    long(&[&[1, b'a', kind][..], &inner].concat())
}

/// They would overflow the stack of the client's parser, or end the connection.
pub(super) async fn rejects_unparsable_message_only(url: &str, rabbit: &RabbitMq) {
    let mut settings = LASTING.to_vec();
    settings.push(("enableDeadLetter", "true"));
    let broker = open(url, "raw", &settings).await.unwrap();
    let mut subscription = subscribe(&broker, "raw", &[]).await.unwrap();
    let mut publisher = Publisher::connect(rabbit).await;
    let unreadable = [
        nested(b'F', 800),
        nested(b'F', 15_000),
        nested(b'A', 20_000),
        // A name that is not UTF-8.
        long(&[1, 0xff, b't', 1]),
    ];
    for headers in &unreadable {
        publisher.publish("raw", b"", headers, "unreadable").await;
        publisher
            .publish("raw", b"\xff", &nested(b'F', 4), "readable")
            .await;
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, "readable");
        assert_eq!(delivery.message.redelivered, Some(0), "the connection ended");
        delivery.receipt.acknowledge();
    }
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let kept = async {
        loop {
            let queue = channel.queue_declare("dlq-raw-raw".into(), passive, FieldTable::default());
            let count = queue.await.unwrap().message_count();
            if usize::try_from(count) == Ok(unreadable.len()) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, kept).await.unwrap();
    connection.close(200, "OK".into()).await.unwrap();
    subscription.ended().await.unwrap();
    broker.close().await;
}
