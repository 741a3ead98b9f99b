//! The kinds of resources that the operator serves. The specifics of each kind are in its file of `reload/`.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use outrigger_resources::Loaded;
use outrigger_resources::load::{Kind, Resource};
use outrigger_wire::operator::v1::ResourceEventType;
use outrigger_wire::operator::v1::operator_client::OperatorClient;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

/// The response to a list: resources as JSON.
pub(crate) type Listing = BoxFuture<'static, Result<Response<Vec<Bytes>>, Status>>;
/// A stream of changes being opened.
pub(crate) type Opening = BoxFuture<'static, Result<BoxStream<'static, Result<Change, Status>>, Status>>;

/// The client of the operator, and the workload it asks for.
#[derive(Clone)]
pub(crate) struct Requester {
    pub(crate) client: OperatorClient<Channel>,
    pub(crate) namespace: String,
}

/// A change of one resource.
pub(crate) struct Change {
    /// The resource.
    pub(crate) json: Bytes,
    pub(crate) event: ResourceEventType,
}

/// A kind of resource that the operator serves.
pub(crate) trait OperatorResource: Resource {
    /// Plural name of the kind, for messages.
    const PLURAL: &'static str;

    /// Opens the stream of changes.
    fn watch(requester: Requester) -> Opening;

    /// Lists the resources.
    fn list(requester: Requester) -> Listing;

    /// Decodes the secrets that the operator inserted in base64.
    fn decode_secrets(&mut self) {}
}

/// An [`OperatorResource`] as a value.
#[derive(Clone, Copy)]
pub(crate) struct OperatorKind {
    pub(crate) kind: Kind,
    pub(super) plural: &'static str,
    pub(super) list: fn(Requester) -> Listing,
    pub(super) watch: fn(Requester) -> Opening,
    /// Name and display name of the first resource of this kind.
    pub(crate) first: fn(&Loaded) -> Option<(String, String)>,
}

impl OperatorKind {
    fn new<R: OperatorResource>() -> Self {
        Self {
            kind: R::KIND,
            plural: R::PLURAL,
            list: R::list,
            watch: R::watch,
            first: |loaded| {
                let first = R::of(loaded).first()?;
                Some((first.name().to_owned(), first.log_name()))
            },
        }
    }

    /// Name of the list operation, for errors.
    pub(super) fn listing(&self) -> String {
        format!("list {}", self.plural)
    }
}

macro_rules! dispatch {
    ($($kind:ident($resource:path)),*) => {
        impl OperatorKind {
            /// How the operator serves a kind.
            pub(crate) fn of(kind: Kind) -> Self {
                match kind {
                    $(Kind::$kind => Self::new::<$resource>(),)*
                }
            }
        }

        /// Decodes the secrets that the operator inserted into resources.
        pub(super) fn decode_secrets(loaded: &mut Loaded) {
            $(<$resource as Resource>::of_mut(loaded).iter_mut().for_each(OperatorResource::decode_secrets);)*
        }
    };
}

outrigger_resources::for_each_kind!(dispatch);

/// Maps a stream of events to changes.
pub(crate) fn opening<M: Send + 'static>(
    call: impl Future<Output = Result<Response<Streaming<M>>, Status>> + Send + 'static,
    change: impl Fn(M) -> Change + Send + 'static,
) -> Opening {
    Box::pin(async move {
        let events = call.await?.into_inner();
        Ok(events.map(move |event| event.map(&change)).boxed())
    })
}
