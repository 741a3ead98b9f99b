//! Secret stores in other processes.

use std::{collections::HashMap, path::Path, sync::Arc};

use async_trait::async_trait;
use outrigger_component::{Catalog, Pairs, Result, SecretStore, Setup, secrets::Feature};
use outrigger_wire::components::v1::{
    BulkGetSecretRequest, FeaturesRequest, GetSecretRequest, PingRequest, SecretStoreInitRequest,
    secret_store_client::SecretStoreClient,
};

use super::{
    Opened, Options, Process,
    link::{Caller, Link, origin},
    status,
};

pub(super) fn add(catalog: &mut Catalog, name: &str, socket: &Path, options: &Options) {
    let entry = super::entry(name, socket, options, |process, setup| async move {
        let opened = Store::open(&process, &setup).await?;
        Ok(Arc::new(opened) as Arc<dyn SecretStore>)
    });
    catalog.secrets.add(entry);
}

struct Store {
    link: Arc<Link>,
    limit: usize,
    features: Vec<Feature>,
}

impl Store {
    async fn open(process: &Process, setup: &Setup) -> Result<Self> {
        let init = |conn, metadata| async move {
            let mut client = SecretStoreClient::with_origin(conn, origin());
            client.init(SecretStoreInitRequest { metadata }).await.map(drop)
        };
        let Opened { link, limit, .. } = process.open(setup, init).await?;
        let mut store = Self {
            link,
            limit,
            features: Vec::new(),
        };
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
