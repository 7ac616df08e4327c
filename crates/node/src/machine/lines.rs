//! A log in pieces that end where a line ends, so that the logs of several
//! nodes can be told apart when they come mixed.

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};

/// Size from which a line is sent in parts.
const MAX_LINE: usize = 64 * 1024;

/// The same bytes in other pieces. An error is passed on after what came
/// before it.
pub(super) fn whole<S, E>(pieces: S) -> impl Stream<Item = Result<Bytes, E>> + Send
where
    S: Stream<Item = Result<Bytes, E>> + Send + Unpin,
    E: Send,
{
    let state = State { pieces, held: BytesMut::new(), failed: None, ended: false };
    stream::unfold(state, |mut state| async move {
        let item = state.next().await?;
        Some((item, state))
    })
}

struct State<S, E> {
    pieces: S,
    held: BytesMut,
    failed: Option<E>,
    ended: bool,
}

impl<S: Stream<Item = Result<Bytes, E>> + Unpin, E> State<S, E> {
    async fn next(&mut self) -> Option<Result<Bytes, E>> {
        loop {
            if self.ended {
                if !self.held.is_empty() {
                    return Some(Ok(self.held.split().freeze()));
                }
                return self.failed.take().map(Err);
            }
            match self.pieces.next().await {
                Some(Ok(piece)) => {
                    let fresh = piece.iter().rposition(|byte| *byte == b'\n');
                    let end = fresh.map(|at| self.held.len() + at + 1);
                    self.held.extend_from_slice(&piece);
                    let end = end.or((self.held.len() >= MAX_LINE).then_some(self.held.len()));
                    if let Some(end) = end {
                        return Some(Ok(self.held.split_to(end).freeze()));
                    }
                }
                Some(Err(error)) => (self.failed, self.ended) = (Some(error), true),
                None => self.ended = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pieces(given: Vec<Result<&'static str, u8>>) -> Vec<Result<String, u8>> {
        let given = stream::iter(given).map(|piece| piece.map(Bytes::from_static_str));
        let out = whole(Box::pin(given));
        out.map(|piece| piece.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
            .collect()
            .await
    }

    trait FromStaticStr {
        fn from_static_str(text: &'static str) -> Self;
    }

    impl FromStaticStr for Bytes {
        fn from_static_str(text: &'static str) -> Self {
            Self::from_static(text.as_bytes())
        }
    }

    #[tokio::test]
    async fn lines_are_not_torn() {
        let given = vec![Ok("one\ntw"), Ok("o"), Ok("\nthree\nfo"), Ok("ur"), Err(7)];
        let expected =
            vec![Ok("one\n".into()), Ok("two\nthree\n".into()), Ok("four".into()), Err(7)];
        assert_eq!(pieces(given).await, expected);
        assert_eq!(pieces(vec![Ok("x")]).await, vec![Ok("x".into())]);
    }
}
