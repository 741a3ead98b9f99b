//! Routing of a subscription's events: CEL rules over `event`, evaluated in order, and a default route.

use std::collections::HashMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use cel::objects::{Key, Map};
use cel::{Context, Env, Value};
use outrigger_resources::subscription;
use serde_json::Value as Json;

use crate::expression::{Expression, start};

/// The attributes of an event, and its data, as variables of an expression.
pub type Event = serde_json::Map<String, Json>;

/// The compiled routes of a subscription.
#[derive(Clone)]
pub struct Routes {
    env: Arc<Env>,
    routes: Arc<[Route]>,
}

struct Route {
    /// As written; empty matches everything.
    expression: String,
    compiled: Option<Expression>,
    path: String,
}

/// A rule is not valid CEL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "routing rule {number} (to path {path:?}) is not valid CEL: {expression:?}: {reason}; write an expression over \
     event, as event.type == \"order\""
)]
pub struct InvalidRule {
    /// Position in the list, from 1.
    pub number: usize,
    /// The expression as written, or its start.
    pub expression: String,
    /// The app's path for the rule.
    pub path: String,
    /// The CEL compiler's error.
    pub reason: String,
}

/// A rule could not be evaluated for an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("routing rule {number}, {expression:?}: {reason}")]
pub struct EvaluationError {
    /// Position in the list, from 1.
    pub number: usize,
    /// The expression as written, or its start.
    pub expression: String,
    /// The cause.
    pub reason: String,
}

impl Routes {
    /// Compiles rules and a default, which is last; an empty default means none.
    ///
    /// # Errors
    /// [`InvalidRule`] for the first invalid rule.
    pub fn compile(routes: &subscription::Routes) -> Result<Self, InvalidRule> {
        let env = Arc::new(Env::stdlib());
        let mut compiled = Vec::with_capacity(routes.rules.len() + 1);
        for (index, rule) in routes.rules.iter().enumerate() {
            let expression = rule.r#match.trim();
            let rule_compiled = match expression {
                "" => None,
                text => Some(Expression::compile(&env, text).map_err(|reason| InvalidRule {
                    number: index + 1,
                    expression: start(text).to_owned(),
                    path: rule.path.clone(),
                    reason,
                })?),
            };
            compiled.push(Route {
                expression: expression.to_owned(),
                compiled: rule_compiled,
                path: rule.path.clone(),
            });
        }
        if !routes.default.is_empty() {
            compiled.push(Route::always(&routes.default));
        }
        Ok(Self {
            env,
            routes: compiled.into(),
        })
    }

    /// Routes everything to one path.
    pub fn always(path: &str) -> Self {
        Self {
            env: Arc::new(Env::stdlib()),
            routes: Arc::new([Route::always(path)]),
        }
    }

    /// Whether there are no routes.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Whether routing depends on the event.
    pub fn need_event(&self) -> bool {
        let first = self.routes.first();
        first.is_some_and(|route| route.compiled.is_some())
    }

    /// The expressions and paths in order; the default has an empty expression.
    pub fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.routes
            .iter()
            .map(|route| (route.expression.as_str(), route.path.as_str()))
    }

    /// The path of the first rule that matches; `None` if none does.
    ///
    /// # Errors
    /// [`EvaluationError`] if a rule cannot be evaluated, would take too long with this event, or its
    /// result is not a boolean.
    pub fn find(&self, event: &Event) -> Result<Option<&str>, EvaluationError> {
        let mut context = None;
        for (index, route) in self.routes.iter().enumerate() {
            let Some(compiled) = &route.compiled else {
                return Ok(Some(&route.path));
            };
            let context = context.get_or_insert_with(|| {
                let mut context = Context::with_env(Arc::clone(&self.env));
                context.add_variable_from_value("event", object(event));
                context
            });
            let undecided = |reason| EvaluationError {
                number: index + 1,
                expression: start(&route.expression).to_owned(),
                reason,
            };
            compiled.check(event).map_err(undecided)?;
            match compiled.program().execute(context) {
                Ok(Value::Bool(true)) => return Ok(Some(&route.path)),
                Ok(Value::Bool(false)) => {}
                Ok(other) => {
                    let kind = other.type_of();
                    return Err(undecided(format!("the result is not a boolean, but {kind}")));
                }
                Err(error) => return Err(undecided(error.to_string())),
            }
        }
        Ok(None)
    }
}

impl Route {
    fn always(path: &str) -> Self {
        Self {
            expression: String::new(),
            compiled: None,
            path: path.to_owned(),
        }
    }
}

impl Debug for Routes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.shown()).finish()
    }
}

impl PartialEq for Routes {
    fn eq(&self, other: &Self) -> bool {
        self.shown().eq(other.shown())
    }
}

fn object(event: &Event) -> Value {
    let items = event
        .iter()
        .map(|(name, value)| (Key::from(name.as_str()), value_of(value)));
    Value::Map(Map {
        map: Arc::new(items.collect::<HashMap<_, _>>()),
    })
}

/// All numbers are floats, as in Dapr; CEL can compare those with integers.
fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(value_of).collect())),
        Json::Object(members) => object(members),
    }
}

#[cfg(test)]
mod tests {
    use outrigger_resources::subscription::Rule;
    use serde_json::json;

    use super::*;

    fn routes(rules: &[(&str, &str)], default: &str) -> Result<Routes, InvalidRule> {
        let rules = rules.iter().map(|(r#match, path)| Rule {
            r#match: (*r#match).to_owned(),
            path: (*path).to_owned(),
        });
        Routes::compile(&subscription::Routes {
            rules: rules.collect(),
            default: default.to_owned(),
        })
    }

    fn event(json: Json) -> Event {
        json.as_object().unwrap().clone()
    }

    #[test]
    fn first_matching_rule_wins() {
        let rules = [
            ("event.type == \"order\" && event.data.total > 100", "/large"),
            ("event.type == \"order\"", "/orders"),
            ("event.source.matches(\"^shop-[0-9]+$\")", "/shops"),
            ("has(event.data.tags) && \"vip\" in event.data.tags", "/vip"),
            ("event.data.count == 3", "/three"),
        ];
        let routes = routes(&rules, "/rest").unwrap();
        let base = json!({"type": "x", "source": "s", "data": {}});
        let with = |patch: Json| {
            let mut event = event(base.clone());
            event.extend(patch.as_object().unwrap().clone());
            routes.find(&event).unwrap().map(str::to_owned)
        };
        let order = |total| with(json!({"type": "order", "data": {"total": total}}));
        assert_eq!(order(100.5).as_deref(), Some("/large"));
        assert_eq!(order(100.0).as_deref(), Some("/orders"));
        assert_eq!(
            with(json!({"source": "shop-12", "data": {"count": 3}})).as_deref(),
            Some("/shops")
        );
        assert_eq!(with(json!({"data": {"tags": ["vip"]}})).as_deref(), Some("/vip"));
        assert_eq!(with(json!({"data": {"count": 3}})).as_deref(), Some("/three"));
        assert_eq!(with(json!({"data": {"count": 4}})).as_deref(), Some("/rest"));
    }

    #[test]
    fn drops_event_without_match_or_default() {
        let routes = routes(&[("event.type == 'a'", "/a")], "").unwrap();
        assert_eq!(routes.find(&event(json!({"type": "b"}))), Ok(None));
        assert!(!routes.is_empty());
    }

    #[test]
    fn empty_rule_always_matches() {
        let routes = routes(&[("  ", "/all"), ("nonsense", "/never")], "/default").unwrap();
        assert_eq!(routes.find(&Event::new()), Ok(Some("/all")));
    }

    #[test]
    fn error_names_malformed_rule() {
        let error = routes(&[("event.type == 'a'", "/a"), ("event.type ==", "/b")], "").unwrap_err();
        assert_eq!((error.number, error.path.as_str()), (2, "/b"));
        assert!(error.to_string().contains("event.type =="), "{error}");
    }

    #[test]
    fn unevaluable_rule_is_error() {
        let not_boolean = routes(&[("event.type", "/a")], "/b").unwrap();
        let error = not_boolean.find(&event(json!({"type": "a"}))).unwrap_err();
        assert_eq!(error.number, 1);
        let missing = routes(&[("event.data.a.b == 1", "/a")], "/b").unwrap();
        assert!(missing.find(&event(json!({"data": "text"}))).is_err());
        let rule = "event.data.items.all(x, event.data.items.exists(y, y.id == x.parent))";
        let looping = routes(&[(rule, "/a")], "/b").unwrap();
        let items = |count| -> Vec<Json> { (0..count).map(|n| json!({"id": n, "parent": n})).collect() };
        let found = looping.find(&event(json!({"data": {"items": items(20)}})));
        assert_eq!(found, Ok(Some("/a")));
        let error = looping.find(&event(json!({"data": {"items": items(30_000)}})));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("more than 500000 steps"), "{error}");
    }
}
