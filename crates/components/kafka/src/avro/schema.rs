//! Schemas parsed by `apache-avro`, in a form without lookups by name.

use apache_avro::schema::{Aliases, InnerDecimalSchema, Name, RecordSchema, Schema, UuidSchema};

use super::{encode::default_value, *};

/// Maximum nesting of a schema's JSON, because the parser is recursive.
const MAX_SCHEMA_DEPTH: usize = 64;
/// Maximum total size of a schema's encoded defaults, bytes.
const MAX_DEFAULTS: usize = 1024 * 1024;
/// Maximum length of the parser's error text, characters: some errors repeat the schema.
const MAX_REASON: usize = 300;

/// A type. Logical types are replaced by their base type, which determines both encodings.
#[derive(Debug)]
pub(super) enum Node {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Array(usize),
    Map(usize),
    Union(Union),
    Record(Record),
    /// The symbols.
    Enum(Vec<String>),
    /// Size in bytes.
    Fixed(usize),
}

#[derive(Debug)]
pub(super) struct Union {
    pub(super) types: Vec<Member>,
    /// Indices into `types`, sorted by type name.
    pub(super) sorted: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) node: usize,
    /// Type name used by Dapr in JSON: unlike in the specification, logical types have their own.
    pub(super) tag: String,
    /// Type name of the specification.
    pub(super) name: String,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) fields: Vec<Field>,
    /// Indices into `fields`.
    pub(super) by_name: HashMap<String, usize>,
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) node: usize,
    pub(super) default: Option<Default>,
}

#[derive(Debug)]
pub(super) enum Default {
    /// As written in the schema; only until the schema is complete.
    Json(Value),
    /// Encoded.
    Ready(Vec<u8>),
}

impl Node {
    /// Name for errors.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Int => "int",
            Self::Long => "long",
            Self::Float => "float",
            Self::Double => "double",
            Self::Bytes => "bytes",
            Self::String => "string",
            Self::Array(_) => "array",
            Self::Map(_) => "map",
            Self::Union(_) => "union",
            Self::Record(_) => "record",
            Self::Enum(_) => "enum",
            Self::Fixed(_) => "fixed",
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Codec, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| format!("it is not valid JSON: {error}"))?;
    if !is_flat(&json, MAX_SCHEMA_DEPTH) {
        return Err(format!("it is nested deeper than {MAX_SCHEMA_DEPTH} levels"));
    }
    let schema = Schema::parse(&json).map_err(|error| error::cut(&error.to_string(), MAX_REASON))?;
    let mut building = Building::default();
    let root = building.add(&schema)?.node;
    let mut codec = Codec {
        weight: text.len() + building.nodes.len() * size_of::<Node>(),
        nodes: building.nodes,
        root,
    };
    prepare_defaults(&mut codec)?;
    Ok(codec)
}

#[derive(Default)]
struct Building {
    nodes: Vec<Node>,
    /// Type index and full name by full name or alias.
    names: HashMap<String, (usize, String)>,
}

impl Building {
    fn add(&mut self, schema: &Schema) -> Result<Member, String> {
        Ok(match schema {
            Schema::Null => self.plain(Node::Null, "null"),
            Schema::Boolean => self.plain(Node::Boolean, "boolean"),
            Schema::Int => self.plain(Node::Int, "int"),
            Schema::Long => self.plain(Node::Long, "long"),
            Schema::Float => self.plain(Node::Float, "float"),
            Schema::Double => self.plain(Node::Double, "double"),
            Schema::Bytes | Schema::BigDecimal | Schema::Uuid(UuidSchema::Bytes) => {
                self.plain(Node::Bytes, "bytes")
            }
            Schema::String | Schema::Uuid(UuidSchema::String) => self.plain(Node::String, "string"),
            Schema::Date => self.logical(Node::Int, "int", "int.date"),
            Schema::TimeMillis => self.logical(Node::Int, "int", "int.time-millis"),
            Schema::TimeMicros => self.logical(Node::Long, "long", "long.time-micros"),
            Schema::TimestampMillis => self.logical(Node::Long, "long", "long.timestamp-millis"),
            Schema::TimestampMicros => self.logical(Node::Long, "long", "long.timestamp-micros"),
            Schema::TimestampNanos
            | Schema::LocalTimestampMillis
            | Schema::LocalTimestampMicros
            | Schema::LocalTimestampNanos => self.plain(Node::Long, "long"),
            Schema::Decimal(decimal) => match &decimal.inner {
                InnerDecimalSchema::Bytes => self.logical(Node::Bytes, "bytes", "bytes.decimal"),
                InnerDecimalSchema::Fixed(fixed) => {
                    self.named(&fixed.name, &fixed.aliases, Node::Fixed(fixed.size))
                }
            },
            Schema::Fixed(fixed) | Schema::Duration(fixed) | Schema::Uuid(UuidSchema::Fixed(fixed)) => {
                self.named(&fixed.name, &fixed.aliases, Node::Fixed(fixed.size))
            }
            Schema::Enum(symbols) => {
                let node = Node::Enum(symbols.symbols.clone());
                self.named(&symbols.name, &symbols.aliases, node)
            }
            Schema::Array(array) => {
                let items = self.add(&array.items)?.node;
                self.plain(Node::Array(items), "array")
            }
            Schema::Map(map) => {
                let values = self.add(&map.types)?.node;
                self.plain(Node::Map(values), "map")
            }
            Schema::Union(union) => self.union(union.variants())?,
            Schema::Record(record) => self.record(record)?,
            Schema::Ref { name } => self.known(&name.fullname(None))?,
        })
    }

    fn union(&mut self, variants: &[Schema]) -> Result<Member, String> {
        let types = variants.iter().map(|schema| self.add(schema));
        let types = types.collect::<Result<Vec<_>, _>>()?;
        let mut sorted: Vec<usize> = (0..types.len()).collect();
        sorted.sort_by(|one, other| types[*one].tag.cmp(&types[*other].tag));
        Ok(self.plain(Node::Union(Union { types, sorted }), "union"))
    }

    fn record(&mut self, record: &RecordSchema) -> Result<Member, String> {
        // Registered first, because its fields may refer to it.
        let member = self.named(&record.name, &record.aliases, Node::Null);
        let mut fields = Vec::with_capacity(record.fields.len());
        for field in &record.fields {
            fields.push(Field {
                name: field.name.clone(),
                node: self.add(&field.schema)?.node,
                default: field.default.clone().map(Default::Json),
            });
        }
        let by_name = fields.iter().enumerate();
        let by_name = by_name
            .map(|(place, field)| (field.name.clone(), place))
            .collect();
        self.nodes[member.node] = Node::Record(Record { fields, by_name });
        Ok(member)
    }

    /// A type defined earlier.
    fn known(&self, name: &str) -> Result<Member, String> {
        let known = self.names.get(name);
        let (node, name) =
            known.ok_or_else(|| format!("it does not define the type {:?}", error::shortened(name)))?;
        Ok(Member {
            node: *node,
            tag: name.clone(),
            name: name.clone(),
        })
    }

    fn plain(&mut self, node: Node, name: &str) -> Member {
        self.logical(node, name, name)
    }

    fn logical(&mut self, node: Node, name: &str, tag: &str) -> Member {
        self.nodes.push(node);
        Member {
            node: self.nodes.len() - 1,
            tag: tag.to_owned(),
            name: name.to_owned(),
        }
    }

    fn named(&mut self, name: &Name, aliases: &Aliases, node: Node) -> Member {
        let full = name.fullname(None);
        let member = self.plain(node, &full);
        for alias in aliases.iter().flatten() {
            let alias = alias.fullname(name.namespace());
            self.names.insert(alias, (member.node, full.clone()));
        }
        self.names.insert(full.clone(), (member.node, full));
        member
    }
}

/// Encodes the defaults of all fields. A default that does not fit its field makes the schema invalid.
fn prepare_defaults(codec: &mut Codec) -> Result<(), String> {
    let mut left = MAX_DEFAULTS;
    // Inner types come later in the list, so their defaults are encoded first.
    for node in (0..codec.nodes.len()).rev() {
        let Node::Record(Record { fields, .. }) = &codec.nodes[node] else {
            continue;
        };
        for field in 0..fields.len() {
            let Node::Record(Record { fields, .. }) = &codec.nodes[node] else {
                break;
            };
            let Some(Default::Json(json)) = &fields[field].default else {
                continue;
            };
            let made = default_value(codec, fields[field].node, json, left)
                .map_err(|error| format!("the default of {}", error.of(&fields[field].name)))?;
            left = left.saturating_sub(made.len());
            codec.weight += made.len();
            if let Node::Record(Record { fields, .. }) = &mut codec.nodes[node] {
                fields[field].default = Some(Default::Ready(made));
            }
        }
    }
    Ok(())
}
