use super::*;
use http_body_util::StreamBody;

fn chunks(parts: &'static [&'static [u8]]) -> Body {
    let frames = parts
        .iter()
        .map(|p| Ok::<_, BoxError>(Frame::data(Bytes::from_static(p))));
    Body::stream(StreamBody::new(futures::stream::iter(frames)))
}

#[tokio::test]
async fn collects_in_order_and_refuses_more_than_the_limit() {
    assert_eq!(
        chunks(&[b"ab", b"", b"c", b"d"]).collect_up_to(4).await.unwrap(),
        "abcd"
    );
    let error = chunks(&[b"ab", b"cde"]).collect_up_to(4).await.unwrap_err();
    assert!(error.downcast_ref::<TooLarge>().is_some());
}

#[tokio::test]
async fn a_second_attempt_replays_what_the_first_read_and_continues() {
    let replay = Replay::new(chunks(&[b"one", b"two", b"three"]));
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
async fn past_the_limit_no_attempt_follows_but_the_running_one_is_whole() {
    static BIG: [u8; 40 * 1024] = [7; 40 * 1024];
    static TWICE: [&[u8]; 2] = [&BIG, &BIG];
    let replay = Replay::new(chunks(&TWICE));
    let first = replay.attempt().unwrap();
    assert_eq!(first.collect_up_to(usize::MAX).await.unwrap().len(), 80 * 1024);
    assert!(replay.attempt().is_none());
}

#[tokio::test]
async fn many_small_pieces_are_not_kept_either() {
    static BYTES: [&[u8]; REPLAY_FRAMES + 1] = [b"x"; REPLAY_FRAMES + 1];
    let replay = Replay::new(chunks(&BYTES[1..]));
    assert_eq!(
        replay.attempt().unwrap().collect_up_to(9999).await.unwrap().len(),
        512
    );
    assert!(replay.attempt().is_some());
    let replay = Replay::new(chunks(&BYTES));
    assert_eq!(
        replay.attempt().unwrap().collect_up_to(9999).await.unwrap().len(),
        513
    );
    assert!(replay.attempt().is_none());
}

#[tokio::test]
async fn a_limited_body_fails_past_its_limit() {
    let mut body = chunks(&[b"abc", b"def"]);
    limit(&mut body, 5);
    assert!(body.collect_up_to(100).await.is_err());
    let mut body = chunks(&[b"abc", b"de"]);
    limit(&mut body, 5);
    assert_eq!(body.collect_up_to(100).await.unwrap(), "abcde");
}
