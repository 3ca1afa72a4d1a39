//! What an agent tells.

use std::sync::Arc;

use gatescope_routing::{
    Finish, KvLink, ModelShape, Part, RequestKey, Source, Span, Start,
    join::{BlockReference, Lost},
};

/// One thing that an agent tells: one row of a message.
#[derive(Debug, Clone)]
pub enum Event {
    /// Of a request.
    Request(Request),
    /// Of the model that an instance serves.
    Model(ModelSeen),
}

/// Something of a request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which request.
    pub key: RequestKey,
    /// When the agent captured it: microseconds since 1970, UTC.
    pub at: i64,
    /// What.
    pub told: Told,
}

/// What is told of a request.
#[derive(Debug, Clone)]
pub enum Told {
    /// Rows (`span`).
    Span(Span),
    /// Rows of a block that the same instance sent before (`block`).
    Block(Block),
    /// An instance began the request (`start`).
    Start(Started),
    /// An instance finished the request (`finish`).
    Finish(Finish),
    /// An instance took the request's KV cache away and will start it again; `attempt` is the one that ended
    /// (`preempt`).
    Preempt(Source),
    /// A decode names the prefill whose KV it took (`link`).
    Link(Link),
    /// Rows that the agent captured and had to drop (`lost`).
    Lost(Lost),
}

/// Rows of a block, by its hash.
#[derive(Debug, Clone)]
pub struct Block {
    /// Which block, and where.
    pub reference: BlockReference,
    /// Positions of the block.
    pub rows: u32,
}

/// An instance began a request.
#[derive(Debug, Clone)]
pub struct Started {
    /// What the join wants to know of it.
    pub start: Start,
    /// What the instance calls the request inside: the name by which a decode links to its prefill.
    pub name: Option<KvLink>,
    /// The model that serves it.
    pub model: Option<Arc<str>>,
}

/// A decode names its prefill.
#[derive(Debug, Clone)]
pub struct Link {
    /// The decode.
    pub source: Source,
    /// What the prefill calls the request.
    pub prefill: KvLink,
}

/// The model that an instance serves.
#[derive(Debug, Clone)]
pub struct ModelSeen {
    /// Label of the deployment.
    pub run: Arc<str>,
    /// Who serves it.
    pub instance: Arc<str>,
    /// When the agent looked: microseconds since 1970, UTC.
    pub at: i64,
    /// Its name.
    pub model: Arc<str>,
    /// Its shape.
    pub shape: ModelShape,
}

impl Told {
    /// Who told it.
    pub fn source(&self) -> &Source {
        match self {
            Self::Span(span) => &span.source,
            Self::Block(block) => &block.reference.source,
            Self::Start(started) => &started.start.source,
            Self::Finish(finish) => &finish.source,
            Self::Preempt(source) => source,
            Self::Link(link) => &link.source,
            Self::Lost(lost) => &lost.source,
        }
    }

    /// What the join takes of it; `None` for a preemption and a link, which are not parts. The name in a start goes to
    /// [`Join::identify`](gatescope_routing::Join::identify), a link to [`Join::link`](gatescope_routing::Join::link).
    pub fn into_part(self) -> Option<Part> {
        match self {
            Self::Span(span) => Some(Part::Span(span)),
            Self::Block(block) => Some(Part::Block(block.reference)),
            Self::Start(started) => Some(Part::Start(started.start)),
            Self::Finish(finish) => Some(Part::Finish(finish)),
            Self::Lost(lost) => Some(Part::Lost(lost)),
            Self::Preempt(_) | Self::Link(_) => None,
        }
    }
}

/// The values of the column `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Span,
    Block,
    Start,
    Finish,
    Preempt,
    Link,
    Lost,
    Shape,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] =
        [Self::Span, Self::Block, Self::Start, Self::Finish, Self::Preempt, Self::Link, Self::Lost, Self::Shape];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Span => "span",
            Self::Block => "block",
            Self::Start => "start",
            Self::Finish => "finish",
            Self::Preempt => "preempt",
            Self::Link => "link",
            Self::Lost => "lost",
            Self::Shape => "shape",
        }
    }

    pub(crate) fn of(event: &Event) -> Self {
        match event {
            Event::Model(_) => Self::Shape,
            Event::Request(request) => match request.told {
                Told::Span(_) => Self::Span,
                Told::Block(_) => Self::Block,
                Told::Start(_) => Self::Start,
                Told::Finish(_) => Self::Finish,
                Told::Preempt(_) => Self::Preempt,
                Told::Link(_) => Self::Link,
                Told::Lost(_) => Self::Lost,
            },
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
