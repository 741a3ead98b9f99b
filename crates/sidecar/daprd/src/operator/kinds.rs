//! The kinds of resources that the operator serves. What is particular to a kind stands in its file of `reload/`.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use outrigger_resources::Loaded;
use outrigger_resources::load::{Kind, Resource};
use outrigger_wire::operator::v1::ResourceEventType;
use outrigger_wire::operator::v1::operator_client::OperatorClient;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

/// The answer to a list: the resources as JSON.
pub(crate) type Listing = BoxFuture<'static, Result<Response<Vec<Bytes>>, Status>>;
/// A stream of changes that is being opened.
pub(crate) type Opening = BoxFuture<'static, Result<BoxStream<'static, Result<Change, Status>>, Status>>;

/// How the operator is asked, and for whom.
#[derive(Clone)]
pub(crate) struct Requester {
    pub(crate) client: OperatorClient<Channel>,
    pub(crate) namespace: String,
    /// The pod's name; may be empty.
    pub(crate) pod: String,
}

/// A change of one resource.
pub(crate) struct Change {
    /// The resource.
    pub(crate) json: Bytes,
    pub(crate) event: ResourceEventType,
}

/// A kind of resource that the operator serves.
pub(crate) trait OperatorResource: Resource {
    /// What its resources are called in messages, in the plural.
    const PLURAL: &'static str;

    /// Opens its stream of changes. None: the protocol has none, and they are only listed again.
    const WATCH: Option<fn(Requester) -> Opening> = None;

    /// Lists its resources.
    fn list(requester: Requester) -> Listing;

    /// Makes the secrets readable that the operator put into it, in base64.
    fn decode_secrets(&mut self) {}
}

/// An [`OperatorResource`] as a value.
#[derive(Clone, Copy)]
pub(crate) struct OperatorKind {
    pub(crate) kind: Kind,
    pub(super) plural: &'static str,
    pub(super) list: fn(Requester) -> Listing,
    pub(super) watch: Option<fn(Requester) -> Opening>,
    /// Name, and name for logs, of the first of this kind.
    pub(crate) first: fn(&Loaded) -> Option<(String, String)>,
}

impl OperatorKind {
    fn new<R: OperatorResource>() -> Self {
        Self {
            kind: R::KIND,
            plural: R::PLURAL,
            list: R::list,
            watch: R::WATCH,
            first: |loaded| {
                let first = R::of(loaded).first()?;
                Some((first.name().to_owned(), first.log_name()))
            },
        }
    }

    /// What is done where resources of the kind are listed, for errors.
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

        /// Makes the secrets readable that the operator put into resources.
        pub(super) fn decode_secrets(loaded: &mut Loaded) {
            $(<$resource as Resource>::of_mut(loaded).iter_mut().for_each(OperatorResource::decode_secrets);)*
        }
    };
}

outrigger_resources::for_each_kind!(dispatch);

/// Makes changes of the events of a stream.
pub(crate) fn opening<M: Send + 'static>(
    call: impl Future<Output = Result<Response<Streaming<M>>, Status>> + Send + 'static,
    change: impl Fn(M) -> Change + Send + 'static,
) -> Opening {
    Box::pin(async move {
        let events = call.await?.into_inner();
        Ok(events.map(move |event| event.map(&change)).boxed())
    })
}
