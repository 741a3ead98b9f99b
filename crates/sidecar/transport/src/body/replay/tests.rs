use http_body_util::{BodyExt as _, StreamBody};

use super::*;

fn chunks(parts: &'static [&'static [u8]]) -> Body {
    let frames = parts
        .iter()
        .map(|p| Ok::<_, BoxError>(Frame::data(Bytes::from_static(p))));
    Body::stream(StreamBody::new(futures::stream::iter(frames)))
}

#[tokio::test]
async fn second_attempt_replays_and_continues() {
    let replay = Replayable::new(chunks(&[b"one", b"two", b"three"]));
    let mut first = replay.attempt().unwrap();
    assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    drop(first);
    let second = replay.attempt().unwrap();
    assert_eq!(second.collect_up_to(100).await.unwrap(), "onetwothree");
    assert_eq!(
        replay.attempt().unwrap().collect_up_to(100).await.unwrap(),
        "onetwothree"
    );
}

#[tokio::test]
async fn stops_buffering_past_byte_limit() {
    static BIG: [u8; 40 * 1024] = [7; 40 * 1024];
    static TWICE: [&[u8]; 2] = [&BIG, &BIG];
    let replay = Replayable::new(chunks(&TWICE));
    let first = replay.attempt().unwrap();
    assert_eq!(first.collect_up_to(usize::MAX).await.unwrap().len(), 80 * 1024);
    assert!(replay.attempt().is_none());
}

#[tokio::test]
async fn stops_buffering_past_frame_limit() {
    static BYTES: [&[u8]; REPLAY_FRAMES + 1] = [b"x"; REPLAY_FRAMES + 1];
    let replay = Replayable::new(chunks(&BYTES[1..]));
    assert_eq!(
        replay.attempt().unwrap().collect_up_to(9999).await.unwrap().len(),
        512
    );
    assert!(replay.attempt().is_some());
    let replay = Replayable::new(chunks(&BYTES));
    assert_eq!(
        replay.attempt().unwrap().collect_up_to(9999).await.unwrap().len(),
        513
    );
    assert!(replay.attempt().is_none());
}

#[tokio::test]
async fn replays_in_memory_body_every_time() {
    for (body, expected) in [(Body::Empty, ""), (Body::from("whole"), "whole")] {
        let replay = Replayable::new(body);
        for _ in 0..2 {
            let attempt = replay.attempt().unwrap();
            assert_eq!(attempt.known_length(), Some(expected.len() as u64));
            assert_eq!(attempt.collect_up_to(10).await.unwrap(), expected);
        }
        assert!(replay.can_repeat());
    }
}
