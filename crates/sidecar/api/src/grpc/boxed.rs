//! Implements tonic services without `#[tonic::async_trait]`.

/// Implements a service with the methods of `$handler` of the same names.
///
/// `#[tonic::async_trait]` adds lifetime bounds to each method. Under such bounds the compiler does not cache
/// `Send` checks and repeats them for everything a service can reach. That took two fifths of the build time
/// of this crate. The macro boxes the future in a nested function without bounds.
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
