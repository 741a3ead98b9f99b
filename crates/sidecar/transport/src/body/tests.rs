use std::sync::Arc;

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
async fn a_limited_body_fails_past_its_limit() {
    let mut body = chunks(&[b"abc", b"def"]);
    limit(&mut body, 5);
    assert!(body.collect_up_to(100).await.is_err());
    let mut body = chunks(&[b"abc", b"de"]);
    limit(&mut body, 5);
    assert_eq!(body.collect_up_to(100).await.unwrap(), "abcde");
}

/// Bounds of a connection that may have ten bytes of unfinished requests.
const TEN: UnfinishedBounds = UnfinishedBounds {
    connection: 10,
    process: 1000,
};

#[tokio::test]
async fn what_is_collected_counts_until_it_is_whole_whatever_is_around_the_body() {
    static MEMORY: UnfinishedMemory = UnfinishedMemory::new();
    let connection = Unfinished::new(TEN, &MEMORY);
    let counted = |parts: &'static [&'static [u8]]| chunks(parts).counted(Some(Arc::clone(&connection)));
    let wrapped: [fn(Body) -> Body; 5] = [
        |body| body,
        |mut body| {
            limit(&mut body, 100);
            body
        },
        |body| body.on_end(|| {}),
        |body| Replayable::new(body).attempt().unwrap(),
        |body| body.after(Some(Ok(Frame::data(Bytes::from_static(b""))))),
    ];
    for (number, wrap) in wrapped.into_iter().enumerate() {
        for _ in 0..2 {
            let fits = wrap(counted(&[b"12345", b"67890"])).collect_up_to(100).await;
            assert_eq!(fits.unwrap(), "1234567890", "{number}");
            let error = wrap(counted(&[b"12345", b"67890", b"1"]))
                .collect_up_to(100)
                .await;
            assert!(error.unwrap_err().is::<TooMuchUnfinished>(), "{number}");
        }
    }
    // What is passed on is kept by nobody.
    let mut passed = counted(&[b"12345", b"67890", b"1"]);
    let mut pieces = 0;
    while let Some(piece) = passed.frame().await {
        piece.unwrap();
        pieces += 1;
    }
    assert_eq!(pieces, 3);
    // What is here whole counts for nothing.
    let whole = Body::from("12345678901").counted(Some(Arc::clone(&connection)));
    assert!(matches!(whole, Body::Full(_)));
    assert_eq!(whole.collect_up_to(100).await.unwrap().len(), 11);
}

#[tokio::test]
async fn bodies_that_are_collected_at_once_share_the_room_of_their_connection() {
    static MEMORY: UnfinishedMemory = UnfinishedMemory::new();
    let connection = Unfinished::new(TEN, &MEMORY);
    let begun = || {
        let first = futures::stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"123456")))]);
        let body = Body::stream(StreamBody::new(futures::StreamExt::chain(
            first,
            futures::stream::pending(),
        )));
        Box::pin(body.counted(Some(Arc::clone(&connection))).collect_up_to(100))
    };
    let (mut one, mut other) = (begun(), begun());
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(one.as_mut().poll(&mut cx).is_pending());
    let Poll::Ready(Err(error)) = other.as_mut().poll(&mut cx) else {
        panic!("there is no room for both");
    };
    assert!(error.is::<TooMuchUnfinished>());
    // The other goes on, and who gives up makes room.
    assert!(one.as_mut().poll(&mut cx).is_pending());
    drop(one);
    assert!(begun().as_mut().poll(&mut cx).is_pending());
}
