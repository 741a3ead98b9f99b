//! Implementing a service of tonic without its attribute.

/// A service's methods, written as for `#[tonic::async_trait]`.
///
/// What the attribute makes of a method has bounds of lifetimes. Under those the compiler remembers nothing of what it
/// has found to be `Send`, and walks through all that a service can reach again for each type and each future on the way:
/// half of the time that this crate took. So the future is made by a function of its own, that has no bounds.
macro_rules! boxed_methods {
    (impl $service:ident for $handler:ident {
        $(async fn $name:ident(&$this:ident, $request:ident: $asked:ty $(,)?) -> $answered:ty $body:block)*
    }) => {
        impl $handler {$(
            fn $name(&$this, $request: $asked) -> ::futures::future::BoxFuture<'_, $answered> {
                ::std::boxed::Box::pin(async move $body)
            }
        )*}

        impl $service for $handler {$(
            fn $name<'life0, 'async_trait>(
                &'life0 self,
                request: $asked,
            ) -> ::futures::future::BoxFuture<'async_trait, $answered>
            where
                'life0: 'async_trait,
                Self: 'async_trait,
            {
                $handler::$name(self, request)
            }
        )*}
    };
}

pub(super) use boxed_methods;
