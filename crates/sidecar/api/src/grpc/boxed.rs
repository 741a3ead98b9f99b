//! Implementing a service of tonic without its attribute.

/// Implements a service by the methods of `$handler` that have the names of the service's.
///
/// What `#[tonic::async_trait]` makes of a method has bounds of lifetimes. Under those the compiler remembers nothing of what
/// it has found to be `Send`, and walks through all that a service can reach again for each type and each future on the way:
/// two fifths of the time that this crate took. So the future is boxed by a function of its own, that has no bounds.
macro_rules! boxed_methods {
    (impl $service:ident for $handler:ident {
        $($name:ident($asked:ty) -> $answered:ty;)*
    }) => {
        impl $service for $handler {$(
            fn $name<'life0, 'async_trait>(
                &'life0 self,
                request: $asked,
            ) -> ::futures::future::BoxFuture<'async_trait, Result<$answered, ::tonic::Status>>
            where
                'life0: 'async_trait,
                Self: 'async_trait,
            {
                fn boxed(
                    handler: &$handler,
                    request: $asked,
                ) -> ::futures::future::BoxFuture<'_, Result<$answered, ::tonic::Status>> {
                    ::std::boxed::Box::pin($handler::$name(handler, request))
                }
                boxed(self, request)
            }
        )*}
    };
}

pub(super) use boxed_methods;
