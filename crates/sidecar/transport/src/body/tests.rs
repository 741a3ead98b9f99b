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
async fn collects_in_order_up_to_limit() {
    assert_eq!(
        chunks(&[b"ab", b"", b"c", b"d"]).collect_up_to(4).await.unwrap(),
        "abcd"
    );
    let error = chunks(&[b"ab", b"cde"]).collect_up_to(4).await.unwrap_err();
    assert!(error.downcast_ref::<TooLarge>().is_some());
}

#[tokio::test]
async fn limited_body_fails_past_limit() {
    let mut body = chunks(&[b"abc", b"def"]);
    limit(&mut body, 5);
    assert!(body.collect_up_to(100).await.is_err());
    let mut body = chunks(&[b"abc", b"de"]);
    limit(&mut body, 5);
    assert_eq!(body.collect_up_to(100).await.unwrap(), "abcde");
}

/// Bounds of a connection that may buffer ten bytes of incomplete requests.
const TEN: UnfinishedBounds = UnfinishedBounds {
    connection: 10,
    process: 1000,
};

#[tokio::test]
async fn counts_buffered_bytes_until_complete() {
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
    // Forwarded frames are not buffered.
    let mut passed = counted(&[b"12345", b"67890", b"1"]);
    let mut pieces = 0;
    while let Some(piece) = passed.frame().await {
        piece.unwrap();
        pieces += 1;
    }
    assert_eq!(pieces, 3);
    // A body in memory does not count.
    let whole = Body::from("12345678901").counted(Some(Arc::clone(&connection)));
    assert!(matches!(whole, Body::Full(_)));
    assert_eq!(whole.collect_up_to(100).await.unwrap().len(), 11);
}

#[tokio::test]
async fn concurrent_bodies_share_connection_limit() {
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
    // The other body continues, and dropping one frees its bytes.
    assert!(one.as_mut().poll(&mut cx).is_pending());
    drop(one);
    assert!(begun().as_mut().poll(&mut cx).is_pending());
}
