//! Which rank is on which node.

use crate::error::{Error, Result};
use crate::rank::Rank;

/// The ranks of a job and the nodes that they are on.
///
/// Messages between nodes take the network. Those within a node take what connects its GPUs or sockets, which is faster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The ranks of each node, in ascending order.
    nodes: Vec<Vec<Rank>>,
    /// For each rank its node, and its number among those of the node.
    places: Vec<(usize, usize)>,
}

impl Topology {
    /// Ranks on these nodes: for each rank the number of its node.
    ///
    /// # Errors
    /// If there is no rank, or a node without one: nodes are numbered from 0, without gaps.
    pub fn new(node_of: &[usize]) -> Result<Self> {
        let count = node_of.iter().max().map_or(0, |last| last + 1);
        if count > node_of.len() {
            return Err(Error::Invalid(format!("{} ranks cannot be on {count} nodes", node_of.len())));
        }
        let mut nodes = vec![vec![]; count];
        let mut places = Vec::with_capacity(node_of.len());
        for (rank, node) in node_of.iter().enumerate() {
            places.push((*node, nodes[*node].len()));
            nodes[*node].push(rank);
        }
        if let Some(empty) = nodes.iter().position(Vec::is_empty) {
            return Err(Error::Invalid(format!("node {empty} has no rank")));
        }
        if nodes.is_empty() {
            return Err(Error::Invalid("there are no ranks".to_owned()));
        }
        Ok(Self { nodes, places })
    }

    /// Ranks that fill nodes of `ranks_per_node` one after the other; the last may have fewer.
    ///
    /// # Errors
    /// If one of the two is 0.
    pub fn of_nodes(ranks: usize, ranks_per_node: usize) -> Result<Self> {
        if ranks_per_node == 0 {
            return Err(Error::Invalid("a node needs at least one rank".to_owned()));
        }
        Self::new(&(0..ranks).map(|rank| rank / ranks_per_node).collect::<Vec<_>>())
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.places.len()
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a rank.
    ///
    /// # Panics
    /// If there is no such rank; so do the others.
    pub fn node_of(&self, rank: Rank) -> usize {
        self.places[rank].0
    }

    /// The ranks on the same node, in ascending order, with the rank itself.
    pub fn neighbours(&self, rank: Rank) -> &[Rank] {
        &self.nodes[self.node_of(rank)]
    }

    /// The rank that stands for each node on the rail of a rank: the one with the same number among those of its node. A node
    /// with fewer ranks has one for several rails.
    pub fn rail(&self, rank: Rank) -> Vec<Rank> {
        let number = self.places[rank].1;
        self.nodes.iter().map(|ranks| ranks[number % ranks.len()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_have_a_rank_of_each_node() {
        let topology = Topology::of_nodes(12, 4).unwrap();
        assert_eq!((topology.ranks(), topology.nodes()), (12, 3));
        assert_eq!(topology.rail(5), [1, 5, 9]);
        assert_eq!(topology.neighbours(5), [4, 5, 6, 7]);
        assert_eq!(topology.node_of(11), 2);
    }

    #[test]
    fn ranks_of_a_node_need_not_be_next_to_each_other() {
        let topology = Topology::new(&[1, 0, 1, 0, 1]).unwrap();
        assert_eq!(topology.neighbours(4), [0, 2, 4]);
        assert_eq!(topology.rail(4), [1, 4]);
    }

    #[test]
    fn nodes_without_ranks_are_refused() {
        for nodes in [&[][..], &[0, 2], &[1]] {
            assert!(Topology::new(nodes).is_err(), "{nodes:?}");
        }
        assert!(Topology::of_nodes(0, 4).is_err());
        assert!(Topology::of_nodes(4, 0).is_err());
    }
}
