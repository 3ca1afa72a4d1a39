//! Bodies that are copied while they pass.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::budget::Copied;

/// Where a copy goes when its body has ended. A body that breaks off has no whole copy.
pub(crate) type End = Box<dyn FnOnce(Copied, bool) + Send + Sync>;

/// A body whose frames pass as they are, in the order and at the pace of whoever reads it.
pub(crate) struct Tee {
    body: Incoming,
    copy: Option<(Copied, End)>,
    ended: bool,
    /// Lives as long as the body: see [`crate::proxy`].
    _held: Option<Box<dyn Send + Sync>>,
}

impl Tee {
    /// Nothing is copied.
    pub(crate) fn plain(body: Incoming, held: Option<Box<dyn Send + Sync>>) -> Self {
        Self { body, copy: None, ended: false, _held: held }
    }

    /// Copied, and handed to `end` with whether it came to its end.
    pub(crate) fn copied(body: Incoming, copy: Copied, end: End, held: Option<Box<dyn Send + Sync>>) -> Self {
        Self { body, copy: Some((copy, end)), ended: false, _held: held }
    }
}

impl Body for Tee {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some((copy, _))) = (frame.data_ref(), &mut self.copy) {
                    copy.push(data);
                }
            }
            Some(Err(_)) => {}
            None => self.ended = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        // Whoever knows the length from a header does not ask for the end.
        let ended = self.ended || self.body.is_end_stream();
        if let Some((copy, end)) = self.copy.take() {
            end(copy, ended);
        }
    }
}

/// The copy of a request, there once its body has passed.
pub(crate) type Asked = Arc<OnceLock<Copied>>;
