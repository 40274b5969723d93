//! The place where an actor that may be replaced is found: senders hold the slot, not the address.

use std::sync::{Arc, PoisonError, RwLock};

use actix::prelude::*;

pub struct Slot<A: Actor>(Arc<RwLock<Option<Addr<A>>>>);

impl<A: Actor> Clone for Slot<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A: Actor> Default for Slot<A> {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(None)))
    }
}

impl<A: Actor> Slot<A> {
    /// The actor in place, if one is and it takes messages.
    #[must_use]
    pub fn get(&self) -> Option<Addr<A>> {
        let slot = self.0.read().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().filter(|addr| addr.connected()).cloned()
    }

    pub fn set(&self, addr: Addr<A>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(addr);
    }
}
