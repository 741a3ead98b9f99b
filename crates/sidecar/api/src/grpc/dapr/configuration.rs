//! Configuration methods.

use std::collections::HashMap;

use futures::{StreamExt, stream};
use outrigger_component::configuration::Items;
use outrigger_wire::common::v1::ConfigurationItem;
use outrigger_wire::runtime::v1::{
    GetConfigurationRequest, GetConfigurationResponse, SubscribeConfigurationRequest,
    SubscribeConfigurationResponse, UnsubscribeConfigurationRequest, UnsubscribeConfigurationResponse,
};
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use super::DaprService;
use crate::error::ApiError;
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[
    Group::of(
        "configuration",
        "v1alpha1",
        &[
            "GetConfigurationAlpha1",
            "SubscribeConfigurationAlpha1",
            "UnsubscribeConfigurationAlpha1",
        ],
    ),
    Group::of(
        "configuration",
        "v1",
        &[
            "GetConfiguration",
            "SubscribeConfiguration",
            "UnsubscribeConfiguration",
        ],
    ),
];

impl DaprService {
    pub(super) async fn configuration_get(
        &self,
        request: GetConfigurationRequest,
    ) -> Result<Response<GetConfigurationResponse>, Status> {
        let GetConfigurationRequest {
            store_name,
            keys,
            metadata,
        } = request;
        let items = self.blocks.configuration.get(&store_name, keys, metadata).await;
        let items = items.map_err(|error| self.fail(&error.into()))?;
        Ok(Response::new(GetConfigurationResponse { items: wire(items) }))
    }

    /// The first message carries only the id; the stream ends when the subscription does.
    pub(super) async fn configuration_subscribe(
        &self,
        request: SubscribeConfigurationRequest,
    ) -> Result<Response<BoxStream<SubscribeConfigurationResponse>>, Status> {
        let SubscribeConfigurationRequest {
            store_name,
            mut keys,
            metadata,
        } = request;
        keys.sort_unstable();
        let updates = self
            .blocks
            .configuration
            .subscribe(&store_name, keys, metadata)
            .await;
        // Stream errors are not counted.
        let updates = updates.map_err(|error| ApiError::from(error).status())?;
        let first = SubscribeConfigurationResponse {
            id: updates.id.clone(),
            items: HashMap::new(),
        };
        let changes = stream::unfold(updates, |mut updates| async {
            let items = wire(updates.items.recv().await?);
            let id = updates.id.clone();
            Some((Ok(SubscribeConfigurationResponse { id, items }), updates))
        });
        let all = stream::iter([Ok(first)]).chain(changes);
        Ok(Response::new(Box::pin(all)))
    }

    pub(super) async fn configuration_unsubscribe(
        &self,
        request: &UnsubscribeConfigurationRequest,
    ) -> Response<UnsubscribeConfigurationResponse> {
        let ended = self.blocks.configuration.unsubscribe_anywhere(&request.id).await;
        let message = match ended {
            Ok(()) => String::new(),
            Err(error) => {
                let error = ApiError::from(error);
                self.metrics.error_code(error.counted_as(), error.category);
                error.message
            }
        };
        Response::new(UnsubscribeConfigurationResponse {
            ok: message.is_empty(),
            message,
        })
    }
}

fn wire(items: Items) -> HashMap<String, ConfigurationItem> {
    let items = items.into_iter().map(|(key, item)| {
        let item = ConfigurationItem {
            value: item.value,
            version: item.version,
            metadata: item.metadata,
        };
        (key, item)
    });
    items.collect()
}
