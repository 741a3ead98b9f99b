//! Secret stores in processes of their own.

use std::{collections::HashMap, path::Path, sync::Arc};

use async_trait::async_trait;
use outrigger_component::{
    Catalog, Entry, Pairs, Result, SecretStore, Setup, catalog::Version, secrets::Feature,
};
use outrigger_wire::components::v1::{
    BulkGetSecretRequest, FeaturesRequest, GetSecretRequest, PingRequest, SecretStoreInitRequest,
    secret_store_client::SecretStoreClient,
};

use super::{
    Options,
    link::{Caller, Conn, Link, origin},
    status,
};

pub(super) fn add(catalog: &mut Catalog, name: &str, socket: &Path, options: &Options) {
    let (socket, limit) = (socket.to_owned(), options.max_message());
    catalog
        .secrets
        .add(Entry::new(&[name], Version::Only, move |setup| {
            let socket = socket.clone();
            async move { Ok(Arc::new(Store::open(&socket, setup, limit).await?) as Arc<dyn SecretStore>) }
        }));
}

struct Store {
    link: Arc<Link>,
    limit: usize,
    features: Vec<Feature>,
}

impl Store {
    async fn open(socket: &Path, setup: Setup, limit: usize) -> Result<Self> {
        let (instance, metadata) = super::introduction(&setup)?;
        let link = Link::new(socket, instance, move |conn: Conn| {
            let metadata = Some(metadata.clone());
            let mut client = SecretStoreClient::with_origin(conn, origin());
            async move { client.init(SecretStoreInitRequest { metadata }).await.map(drop) }
        });
        let mut store = Self {
            link,
            limit,
            features: Vec::new(),
        };
        super::start(&store.link).await?;
        let answer = store.client().features(FeaturesRequest {}).await;
        let names = answer
            .map_err(|status| status::error(&status))?
            .into_inner()
            .features;
        let multiple = Feature::MultipleKeyValues;
        if names.iter().any(|name| name == multiple.name()) {
            store.features.push(multiple);
        }
        Ok(store)
    }

    fn client(&self) -> SecretStoreClient<Caller> {
        SecretStoreClient::with_origin(Caller(Arc::clone(&self.link)), origin())
            .max_decoding_message_size(self.limit)
    }
}

#[async_trait]
impl SecretStore for Store {
    fn features(&self) -> &[Feature] {
        &self.features
    }

    async fn get(&self, name: &str, metadata: &Pairs) -> Result<Pairs> {
        let request = GetSecretRequest {
            key: name.to_owned(),
            metadata: metadata.clone(),
        };
        let answer = self.client().get(request).await;
        Ok(answer.map_err(|status| status::error(&status))?.into_inner().data)
    }

    async fn bulk_get(&self, metadata: &Pairs) -> Result<HashMap<String, Pairs>> {
        let request = BulkGetSecretRequest {
            metadata: metadata.clone(),
        };
        let answer = self.client().bulk_get(request).await;
        let secrets = answer.map_err(|status| status::error(&status))?.into_inner().data;
        Ok(secrets
            .into_iter()
            .map(|(name, secret)| (name, secret.secrets))
            .collect())
    }

    async fn ping(&self) -> Result<()> {
        let answer = self.client().ping(PingRequest {}).await;
        answer.map(drop).map_err(|status| status::error(&status))
    }

    async fn close(&self) {
        self.link.close();
    }
}
