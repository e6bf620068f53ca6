//! The part of the search space that was enumerated: sets of relations, and the pairs of them that may be joined.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use crate::{
    RelationSet,
    hypergraph::{Hypergraph, Meeting},
};

/// Two sets of relations that may be joined, by their numbers.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub first: u32,
    pub second: u32,
    pub whole: u32,
    /// How they are joined with the first set on the left.
    pub meeting: Meeting,
}

/// Sets with at least one order each, and pairs. The first sets are the single relations.
pub struct Space<'a> {
    pub graph: &'a Hypergraph<'a>,
    pub sets: Vec<RelationSet>,
    pub pairs: Vec<Pair>,
    numbers: HashMap<RelationSet, u32, BuildHasherDefault<SetHasher>>,
}

impl<'a> Space<'a> {
    pub fn new(graph: &'a Hypergraph<'a>) -> Self {
        let mut space = Self { graph, sets: vec![], pairs: vec![], numbers: HashMap::default() };
        for relation in graph.all.iter() {
            space.number(RelationSet::single(relation));
        }
        space
    }

    /// The number of a set, which gets one if it has none.
    fn number(&mut self, set: RelationSet) -> u32 {
        *self.numbers.entry(set).or_insert_with(|| {
            self.sets.push(set);
            (self.sets.len() - 1) as u32
        })
    }

    /// Whether the set is known to have an order.
    pub fn has(&self, set: RelationSet) -> bool {
        self.numbers.contains_key(&set)
    }

    /// The number of the set of all relations, if an order of them was found.
    pub fn all(&self) -> Option<usize> {
        self.numbers.get(&self.graph.all).map(|&number| number as usize)
    }

    /// Adds a pair, if both sets have an order and they may be joined. Says whether it did.
    pub fn add(&mut self, first: RelationSet, second: RelationSet) -> bool {
        let (Some(&first_number), Some(&second_number)) = (self.numbers.get(&first), self.numbers.get(&second)) else {
            return false;
        };
        let (first_number, second_number, meeting) = match self.graph.meeting(first, second) {
            Some(meeting) => (first_number, second_number, meeting),
            // A fixed join has one way only.
            None => match self.graph.meeting(second, first) {
                Some(meeting) => (second_number, first_number, meeting),
                None => return false,
            },
        };
        let whole = self.number(first | second);
        self.pairs.push(Pair { first: first_number, second: second_number, whole, meeting });
        true
    }

    /// Orders the pairs so that each set is complete before it is used. Pairs that were added twice stay once.
    pub fn sort(&mut self) {
        let sets = &self.sets;
        let key = |pair: &Pair| {
            (sets[pair.whole as usize].len(), pair.whole, pair.first.min(pair.second), pair.first.max(pair.second))
        };
        self.pairs.sort_unstable_by_key(key);
        self.pairs.dedup_by_key(|pair| key(pair));
    }
}

/// Hashes one word, by a multiplication whose high bits are mixed into the low ones.
#[derive(Default)]
pub struct SetHasher(u64);

impl Hasher for SetHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
