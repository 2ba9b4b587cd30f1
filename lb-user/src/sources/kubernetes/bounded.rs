//! A bound for each answer of an API: without it kube's client reads a list, and an event of a watch, of any size.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{TryFutureExt as _, future::MapOk};
use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame, SizeHint},
};
use kube::{
    Client,
    client::{Body as RequestBody, ClientBuilder},
};
use tower::{BoxError, Service, layer::layer_fn};

/// The most bytes of one answer: of a line of a watch, which is an event, and of any other answer as a whole. The largest are
/// lists. A page of one has 500 objects; etcd refuses an object of more than 1.5 MB, and 500 of usual size are a few MB.
pub(super) const MAX_LINE_BYTES: usize = 64 << 20;
/// What a frame takes beside its bytes, as long as the rest of the answer is waited for.
const FRAME_BYTES: usize = size_of::<Bytes>();

/// A client that reads no answer of more than `MAX_LINE_BYTES`.
pub(super) fn client<S, B>(builder: ClientBuilder<S>) -> Client
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    builder.with_layer(&layer_fn(BoundedApi)).build()
}

/// What an operator reads of an answer that is larger.
pub(super) fn too_large() -> String {
    format!("an answer of more than {} MiB", MAX_LINE_BYTES >> 20)
}

/// An API whose answers are bounded.
struct BoundedApi<S>(S);

impl<S, B> Service<Request<RequestBody>> for BoundedApi<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
{
    type Response = Response<BoundedBody<B>>;
    type Error = S::Error;
    type Future = MapOk<S::Future, fn(Response<B>) -> Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|part| part == "watch=true");
        let bound: fn(_) -> _ = match is_watch {
            true => watched,
            false => whole,
        };
        self.0.call(request).map_ok(bound)
    }
}

/// What is read to its end before anything is made of it: no newline makes room for more.
fn whole<B>(answer: Response<B>) -> Response<BoundedBody<B>> {
    answer.map(|body| BoundedBody::new(body, false))
}

/// What is read line by line, unless it is an error.
fn watched<B>(answer: Response<B>) -> Response<BoundedBody<B>> {
    let status = answer.status();
    let is_error = status.is_client_error() || status.is_server_error();
    answer.map(|body| BoundedBody::new(body, !is_error))
}

/// A body that ends with an error where it has more bytes than `limit`.
struct BoundedBody<B> {
    /// None once it has had too many.
    body: Option<B>,
    /// Whether each line has the limit by itself.
    has_lines: bool,
    limit: usize,
    /// Since the last newline if it has lines, or else since the beginning.
    bytes: usize,
}

impl<B> BoundedBody<B> {
    const fn new(body: B, has_lines: bool) -> Self {
        Self {
            body: Some(body),
            has_lines,
            limit: MAX_LINE_BYTES,
            bytes: 0,
        }
    }

    /// Whether there is room for the bytes of one more frame.
    fn has_room(&mut self, data: &[u8]) -> bool {
        if !self.has_lines {
            self.bytes += data.len() + FRAME_BYTES;
            return self.bytes <= self.limit;
        }
        let mut lines = data.split(|byte| *byte == b'\n');
        self.bytes += lines.next().map_or(0, <[u8]>::len);
        let mut has_room = self.bytes <= self.limit;
        for line in lines {
            self.bytes = line.len();
            has_room &= self.bytes <= self.limit;
        }
        has_room
    }
}

impl<B> Body for BoundedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(body).poll_frame(context).map_err(Into::into);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
            && !self.has_room(data)
        {
            self.body = None;
            return Poll::Ready(Some(Err(too_large().into())));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, iter};

    use futures_util::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    /// How many of these frames come through a bound of so many bytes, and the error behind them.
    async fn read(
        frames: &[&'static str],
        has_lines: bool,
        limit: usize,
    ) -> (usize, Option<String>) {
        let frames: Vec<Result<_, Infallible>> = frames
            .iter()
            .map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
            .collect();
        let mut body = BoundedBody {
            limit,
            ..BoundedBody::new(StreamBody::new(stream::iter(frames)), has_lines)
        };
        let mut passed = 0;
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(_) => passed += 1,
                Err(error) => {
                    assert!(body.frame().await.is_none() && body.is_end_stream());
                    return (passed, Some(error.to_string()));
                }
            }
        }
        (passed, None)
    }

    #[tokio::test]
    async fn a_line_has_as_many_bytes_as_it_may_and_no_more() {
        let too_large = || Some("an answer of more than 64 MiB".to_owned());
        for (frames, passed, error) in [
            (&["12345678"][..], 1, None),
            (&["123456789"], 0, too_large()),
            (&["1234", "5678", "\n"], 3, None),
            (&["1234", "5678", "9", "\n"], 2, too_large()),
            (&["12345678\n12345678\n"], 1, None),
            (&["1\n123456", "78", "\n12345678"], 3, None),
            (&["1\n123456", "789\n"], 1, too_large()),
            // A line that is too long between two that are not.
            (&["1\n123456789\n1"], 0, too_large()),
            (&["1234567\n", "12345678", "9"], 2, too_large()),
            (&["\n\n\n", "", "\n\n\n\n\n\n\n\n\n"], 3, None),
        ] {
            assert_eq!(read(frames, true, 8).await, (passed, error), "{frames:?}");
        }
    }

    /// Nor do frames without bytes, each of which is kept as well.
    #[tokio::test]
    async fn no_newline_makes_room_in_an_answer_that_is_read_as_a_whole() {
        let limit = 10 + 2 * FRAME_BYTES;
        assert_eq!(read(&["12345\n", "123\n"], false, limit).await, (2, None));
        for frames in [&["12345\n", "1234\n"], &["\n\n\n\n\n\n", "\n\n\n\n\n"]] {
            let (passed, error) = read(frames, false, limit).await;
            assert_eq!((passed, error), (1, Some(too_large())), "{frames:?}");
        }
        let empty: Vec<_> = iter::repeat_n("", 9).collect();
        assert_eq!(read(&empty, false, limit).await, (2, Some(too_large())));
    }
}
