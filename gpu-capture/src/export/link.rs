//! One `DoPut` stream to the collector.

use std::pin::Pin;

use arrow_flight::{FlightData, PutResult, flight_service_client::FlightServiceClient};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::Endpoint,
};

/// Messages that wait for the network: HTTP/2's own window is behind them.
const AHEAD: usize = 4;

/// A stream that is open or opening. Dropping it ends the stream.
pub(super) struct Link {
    messages: mpsc::Sender<FlightData>,
    answers: Pin<Box<dyn Stream<Item = Result<PutResult, Status>> + Send>>,
}

impl Link {
    /// Begins to connect; what goes wrong comes out of [`Link::answer`].
    pub(super) fn open(endpoint: Endpoint, authorization: Option<MetadataValue<Ascii>>, schema: FlightData) -> Self {
        let (messages, receiver) = mpsc::channel(AHEAD);
        // A collector may answer nothing, not even headers, before it has something to say: so messages flow while
        // the call is still opening.
        let put = async move {
            let channel = endpoint.connect().await.map_err(|error| Status::unavailable(chain(&error)))?;
            let outgoing = stream::once(async { schema }).chain(ReceiverStream::new(receiver));
            let mut request = Request::new(outgoing);
            if let Some(value) = authorization {
                request.metadata_mut().insert("authorization", value);
            }
            let answers = FlightServiceClient::new(channel).do_put(request).await?;
            Ok::<_, Status>(answers.into_inner())
        };
        Self { messages, answers: Box::pin(stream::once(put).try_flatten()) }
    }

    /// Where messages go in.
    pub(super) fn messages(&self) -> mpsc::Sender<FlightData> {
        self.messages.clone()
    }

    /// The next answer. Nothing is lost when the future is dropped.
    pub(super) async fn answer(&mut self) -> Result<PutResult, Status> {
        self.answers.next().await.unwrap_or_else(|| Err(Status::unavailable("the collector ended the stream")))
    }
}

/// An error with what caused it: tonic's own message says "transport error" alone.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
